"""Quotas and shares of tenants, here and through other gateways, and how many tenants are remembered."""

import pytest
from tests.support.admission import BUSY, FREE, drained, held, room, ticket

from legato_gateway.admission import tenant_counters, token_buckets
from legato_gateway.admission.limits import AdmissionLimits, Quota
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import Admit, Hold, Refuse
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_protocol.wire.load import TenantService

MAX_TENANTS = 256  # remembered here: the real number takes seconds


@pytest.fixture(autouse=True)
def few_tenants_are_remembered(monkeypatch):
    for module in (tenant_counters, token_buckets):
        monkeypatch.setattr(module, "MAX_TENANTS", MAX_TENANTS)


def limited(rate: float = 1, burst: float = 100, output_weight: float = 2, **others: Quota) -> AdmissionLimits:
    return AdmissionLimits(quotas={"*": Quota(rate, burst), **others}, output_weight=output_weight)


def test_a_tenant_beyond_its_quota_learns_when_to_come_back():
    queue = Admission(AdmissionLimits(quotas={"small": Quota(rate=8, burst=100)}))
    assert isinstance(queue.offer(ticket("a", "small", 150), FREE, 100), Admit)
    decision = queue.offer(ticket("b", "small"), FREE, 101)
    assert (type(decision), decision.quota, decision.retry_after) == (Refuse, True, 5.375)
    assert isinstance(queue.offer(ticket("c", "large"), FREE, 101), Admit)
    assert isinstance(queue.offer(ticket("d", "small"), FREE, 106.375), Admit)


def test_a_queued_request_counts_against_the_quota_from_its_offer_on():
    """With a quota of 100, one of 200 requests of 500 tokens is kept while no worker has room."""
    queue = held(ticket("0", tokens=500), limits=limited(rate=10))
    for number in range(1, 200):
        decision = queue.offer(ticket(str(number), tokens=500, priority=number % 3), BUSY, 0)
        assert (type(decision), decision.retry_after) == (Refuse, pytest.approx(40.1))
    assert isinstance(queue.offer(ticket("other", "u"), BUSY, 0), Hold)
    assert queue.next(room(60), 0)[0] == "0"
    assert isinstance(queue.offer(ticket("b"), BUSY, 40), Refuse)
    assert isinstance(queue.offer(ticket("c"), BUSY, 40.2), Hold)


def test_a_queued_request_that_is_cancelled_gives_its_quota_back():
    queue = held(ticket("a", tokens=150), limits=limited(rate=10))
    assert isinstance(queue.offer(ticket("b"), BUSY, 0), Refuse)
    queue.cancel("a")
    assert isinstance(queue.offer(ticket("b"), BUSY, 0), Hold)


def test_unknown_and_cancelled_requests_count_against_nothing():
    queue = Admission(limited())
    queue.offer(ticket("a", tokens=10), FREE, 0)
    queue.cancel("a")
    for id in ("a", "unknown"):
        queue.progress(id, 1000)
        queue.finished(id, 1000)
    assert isinstance(queue.offer(ticket("b"), FREE, 0), Admit)


def test_output_counts_against_quota_and_share():
    queue = Admission(limited())
    queue.offer(ticket("a", tokens=10), FREE, 0)
    queue.progress("a", 30)
    queue.progress("a", 30)
    assert isinstance(queue.offer(ticket("b", tokens=10), FREE, 0), Admit)
    queue.finished("a", 45)
    decision = queue.offer(ticket("c"), FREE, 0)
    assert (type(decision), decision.retry_after) == (Refuse, pytest.approx(11))


@pytest.mark.parametrize("known", [False, True])
def test_a_quota_is_used_up_elsewhere_too(known):
    queue = Admission(limited())
    if known:
        queue.offer(ticket("a", tokens=10), FREE, 0)
    queue.served_elsewhere({"t": TenantService(prompt=50, output=20)}, 0)
    assert isinstance(queue.offer(ticket("b", tokens=5), FREE, 0), Refuse if known else Admit)
    queue.served_elsewhere({"t": TenantService(output=10)}, 0)
    decision = queue.offer(ticket("c", tokens=10), FREE, 0)
    assert (type(decision), decision.quota) == (Refuse, True)
    assert isinstance(queue.offer(ticket("d", tokens=10), FREE, 60), Admit)


def remembered(queue: Admission) -> int:
    return max(len(queue._counters), len(queue._buckets))


def flood(queue: Admission, snapshot: FleetSnapshot, tenant: str = "tenant", tokens: int = 100) -> None:
    """More tenants than are remembered come and go, one after the other."""
    for i in range(MAX_TENANTS + 100):
        queue.offer(ticket(str(i), f"{tenant} {i}", tokens), snapshot, 0)
        queue.finished(str(i), 5)
        queue.cancel(str(i))


def test_tenants_named_at_random_do_not_fill_the_memory():
    """True of requests that start, that wait and are given up, and that are refused, here or elsewhere."""
    queue = Admission(limited(burst=1000))
    flood(queue, FREE, "started")
    assert remembered(queue) <= MAX_TENANTS
    flood(queue, BUSY, "waited")
    assert remembered(queue) <= MAX_TENANTS
    assert isinstance(queue.offer(ticket("one", "refused", tokens=6000), FREE, 0), Refuse)
    flood(queue, FREE, "refused", tokens=6000)
    assert remembered(queue) <= MAX_TENANTS
    for i in range(MAX_TENANTS + 100):
        queue.served_elsewhere({f"elsewhere {i}": TenantService(1)}, 0)
    assert remembered(queue) <= MAX_TENANTS


@pytest.mark.parametrize(("tenant", "used", "goes_on"), [("own", 1, False), ("busy", 1, True), ("greedy", 900, False)])
def test_a_flood_of_names_gives_no_tenant_its_quota_back(tenant, used, goes_on):
    """Neither one with a quota of its own, nor one with requests here, nor one that used more than the flood."""
    queue = Admission(limited(0.001, 1000, 1, own=Quota(0.001, 1000)))
    queue.offer(ticket("first", tenant, uncached=used), FREE, 0)
    if not goes_on:
        queue.finished("first", 0)
    flood(queue, FREE)
    if goes_on:
        queue.finished("first", 1000 - used)
    else:
        queue.offer(ticket("second", tenant, uncached=1000 - used), FREE, 0)
    assert isinstance(queue.offer(ticket("last", tenant), FREE, 0), Refuse)


def test_a_flood_of_names_forgets_no_tenant_with_requests_here():
    queue = Admission()
    queue.offer(ticket("started", "a"), FREE, 0)
    queue.offer(ticket("held", "b"), BUSY, 0)
    flood(queue, BUSY)
    queue.progress("started", 5)
    assert queue.next(FREE, 0) == ["held"]


@pytest.mark.parametrize("flooded", [False, True])
def test_the_service_of_a_tenant_counts_when_it_comes_back(flooded):
    """Even after a flood of names: those that were served least are forgotten first."""
    queue = Admission()
    queue.offer(ticket("first", "greedy"), FREE, 0)
    queue.finished("first", 10_000_000)
    if flooded:
        flood(queue, FREE)
    queue.offer(ticket("a", "modest"), BUSY, 0)
    queue.offer(ticket("b", "greedy"), BUSY, 0)
    assert drained(queue) == ["a", "b"]


def queued(queue: Admission, tenant: str, requests: int) -> None:
    for i in range(requests):
        queue.offer(ticket(f"{tenant}{i}", tenant), BUSY, 0)


def test_a_tenant_waits_for_its_service_elsewhere():
    queue = held(*(ticket(f"{tenant}{i}", tenant) for i in range(4) for tenant in "ab"))
    queue.served_elsewhere({"a": TenantService(prompt=100, output=50)}, 0)
    assert drained(queue, 4) == ["b0", "b1", "a0", "b2"]
    queue.check_integrity()


def test_a_tenant_that_was_unknown_here_gets_no_credit_for_the_time_before():
    queue = held(*(ticket(f"a{i}", "a") for i in range(30)))
    drained(queue, 10)
    queue.served_elsewhere({"b": TenantService(prompt=300)}, 0)
    queued(queue, "b", 10)
    assert [id[0] for id in drained(queue, 8)] == list("aaaababa")


def test_a_tenant_with_little_service_elsewhere_does_not_wait_for_it():
    queue = Admission()
    queue.served_elsewhere({"b": TenantService(prompt=1)}, 0)
    queued(queue, "flood", 20)
    drained(queue, 10)
    queue.served_elsewhere({"b": TenantService(prompt=50)}, 0)
    queued(queue, "b", 1)
    assert drained(queue, 1) == ["b0"]


def test_a_tenant_that_was_idle_begins_where_those_served_elsewhere_are():
    """Or else they would wait until it had as much as they had in all the time before."""
    queue = Admission()
    queue.served_elsewhere({"b": TenantService(prompt=10_000)}, 0)
    queued(queue, "a", 10)
    queued(queue, "b", 10)
    assert sorted(id[0] for id in drained(queue, 4)) == list("aabb")
