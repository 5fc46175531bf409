"""Two tenants, one of which floods the service with long prompts, through one gateway or two: in virtual time."""

import functools

import pytest
from tenant_service import TenantLoads, percentile

PAIR, UNIFIED = ("prefill", "decode"), ("unified",)
PROMPT, OUTPUT, EVERY, COUNT = 1500, 16, 0.37, 24


@functools.cache
def ttfts(roles, gateways, flooded):
    """Times to first token of `light`, which sends through the last gateway, with a flood through `flooded`."""
    loads = TenantLoads(gateways, roles)
    for gateway in flooded:
        loads.flood("flood", gateway, 8000, OUTPUT, 32 // len(flooded))
    loads.run(3)
    loads.regular("light", gateways - 1, PROMPT, OUTPUT, EVERY, COUNT)
    loads.run(3 + EVERY * COUNT)
    return loads.tenants["light"].ttft


@pytest.mark.parametrize("roles", [PAIR, UNIFIED], ids=["pair", "unified"])
@pytest.mark.parametrize(("gateways", "flooded"), [(1, (0,)), (2, (0,)), (2, (0, 1))], ids=["one", "two", "flooded"])
def test_a_tenant_waits_at_most_twice_as_long_while_another_floods(roles, gateways, flooded):
    alone, flooding = ttfts(roles, 1, ()), ttfts(roles, gateways, flooded)
    assert len(alone) == len(flooding) == COUNT
    assert percentile(flooding, 0.99) <= 2 * percentile(alone, 0.99)


@pytest.mark.parametrize(
    ("roles", "when_busy", "difference"),
    [(PAIR, "Wait", 0.1), (PAIR, "Local", 0.15), (UNIFIED, "Wait", 0.1)],
    ids=["pair", "helped", "unified"],
)
def test_two_gateways_share_service_as_one_does(roles, when_busy, difference):
    """Both tenants flood, one with prompts four times as long; with two gateways, each through one of them. Each of
    these judges for itself what decode workers have time for, which is more often enough for shorter prompts."""

    def shares(gateways):
        loads = TenantLoads(gateways, roles, when_busy)
        loads.flood("long", 0, 8000, OUTPUT, 16)
        loads.flood("short", gateways - 1, 2000, OUTPUT, 32)
        loads.run(12)
        return {name: tenant.prompt_tokens for name, tenant in loads.tenants.items()}

    one, two = shares(1), shares(2)
    for tenant in one:
        assert two[tenant] == pytest.approx(one[tenant], rel=difference)
    assert one["long"] == pytest.approx(one["short"], rel=0.1)
