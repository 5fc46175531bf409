"""A burst makes only the pool grow that it needs; afterwards the pool returns. Its gateways share the requests."""

import burst
import pytest


@pytest.fixture(scope="module")
def service(serve):
    service = serve("burst", gateways=2)
    service.until_settled()
    return service


@pytest.mark.parametrize(("load", "role"), [(burst.PROMPTS, "prefill"), (burst.ANSWERS, "decode")])
def test_only_the_pool_grows_that_a_burst_needs(service, watch, load, role, figure):
    with watch(service) as samples:
        burst.grow(service, samples, load, role, figure)
