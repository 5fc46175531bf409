"""Tenants by their counters, whatever was put and taken."""

from hypothesis import given
from hypothesis import strategies as st

from legato_gateway.admission.tenant_order import TenantOrder


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.none() | st.floats(0, 10))))
def test_the_least_served_comes_first(steps: list[tuple[str, float | None]]) -> None:
    order, model = TenantOrder(), dict[str, float]()
    for tenant, counter in steps:
        if counter is None:
            order.discard(tenant)
            model.pop(tenant, None)
        else:
            order.put(tenant, counter)
            model[tenant] = counter
        assert list(order) == sorted(model, key=lambda name: (model[name], name))
        assert order.least == min(model.values(), default=None)
        assert [name in order for name in "abcde"] == [name in model for name in "abcde"]
        assert len(order) == len(model)
