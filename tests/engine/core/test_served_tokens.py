"""Each token that a tenant is served is told to every other gateway once, and to its own never."""

from legato_engine.core.reporting.served_tokens import ServedTokens
from legato_protocol.wire.load import TenantService


def told(*gateways: int) -> ServedTokens:
    served = ServedTokens()
    served.take(gateways)
    return served


def test_every_gateway_is_told_the_sum_of_the_others() -> None:
    served = told(1, 2, 3)
    served.count_prompt(1, "a", 100)
    served.count_prompt(2, "a", 10)
    served.count_output(2, "b", 5)
    assert served.take((1, 2, 3)) == {
        1: {"a": TenantService(10, 0), "b": TenantService(0, 5)},
        2: {"a": TenantService(100, 0)},
        3: {"a": TenantService(110, 0), "b": TenantService(0, 5)},
    }
    assert served.take((1, 2, 3)) == {}


def test_a_gateway_that_comes_late_is_told_nothing_from_before() -> None:
    served = told(1)
    served.count_prompt(1, "a", 100)
    assert served.take((1, 2)) == {}
    served.count_prompt(1, "a", 7)
    assert served.take((1, 2)) == {2: {"a": TenantService(7, 0)}}


def test_what_a_gateway_was_served_that_has_left_counts_for_the_others() -> None:
    served = told(1, 2)
    served.count_prompt(1, "a", 100)
    assert served.take((2,)) == {2: {"a": TenantService(100, 0)}}
