"""Two tenants, one of which floods the service with long prompts, through one gateway or two: in virtual time."""

import pytest
from tenant_service import TenantLoads, percentile

PAIR, UNIFIED = ("prefill", "decode"), ("unified",)
PROMPT, OUTPUT, EVERY, COUNT = 1500, 16, 0.37, 24


def served(roles, gateways, flooded):
    """`light` sends through the last gateway, and `flood` through those of `flooded`."""
    loads = TenantLoads(gateways, roles)
    for gateway in flooded:
        loads.flood("flood", gateway, 8000, OUTPUT, 32 // len(flooded))
    loads.run(3)
    loads.regular("light", gateways - 1, PROMPT, OUTPUT, EVERY, COUNT)
    loads.run(3 + EVERY * COUNT)
    return loads.tenants


@pytest.mark.parametrize("roles", [PAIR, UNIFIED], ids=["pair", "unified"])
@pytest.mark.parametrize(("gateways", "flooded"), [(1, [0]), (2, [0]), (2, [0, 1])], ids=["one", "two", "flooded"])
def test_a_tenant_waits_at_most_twice_as_long_beside_a_flood(roles, gateways, flooded):
    alone = served(roles, 1, [])["light"]
    beside = served(roles, gateways, flooded)["light"]
    assert len(alone.ttft) == len(beside.ttft) == COUNT
    assert percentile(beside.ttft, 0.99) <= 2 * percentile(alone.ttft, 0.99)


@pytest.mark.parametrize(
    ("roles", "when_busy", "apart"),
    [(PAIR, "Wait", 0.1), (PAIR, "Local", 0.15), (UNIFIED, "Wait", 0.1)],
    ids=["pair", "helped", "unified"],
)
def test_two_gateways_share_service_as_one_does(roles, when_busy, apart):
    """Both tenants flood, one with prompts four times as long; with two gateways, each through one of them. Each of
    these judges for itself what decode workers have time for, which is more often enough for shorter prompts."""

    def shares(gateways):
        loads = TenantLoads(gateways, roles, when_busy)
        loads.flood("long", 0, 8000, OUTPUT, 16)
        loads.flood("short", gateways - 1, 2000, OUTPUT, 32)
        loads.run(20)
        return {name: tenant.prompt_tokens for name, tenant in loads.tenants.items()}

    one, two = shares(1), shares(2)
    for tenant in one:
        assert two[tenant] == pytest.approx(one[tenant], rel=apart)
    assert one["long"] == pytest.approx(one["short"], rel=0.1)
