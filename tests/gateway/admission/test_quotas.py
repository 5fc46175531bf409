"""Quotas of tenants, and how much is remembered of tenants."""

import pytest
from tests.support.admission import BUSY, FREE, drained, held, room, ticket

from legato_gateway.admission import tenant_counters, token_buckets
from legato_gateway.admission.limits import AdmissionLimits, Quota
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import Admit, Hold, Refuse
from legato_gateway.routing.fleet_snapshot import FleetSnapshot

MAX_TENANTS = 256  # that are remembered here: as many as a service remembers take seconds


@pytest.fixture(autouse=True)
def few_tenants_are_remembered(monkeypatch):
    for module in (tenant_counters, token_buckets):
        monkeypatch.setattr(module, "MAX_TENANTS", MAX_TENANTS)


def test_a_tenant_beyond_its_quota_is_told_when_to_come_back():
    queue = Admission(AdmissionLimits(quotas={"small": Quota(rate=8, burst=100)}))
    assert isinstance(queue.offer(ticket("a", "small", 150), FREE, 100), Admit)
    decision = queue.offer(ticket("b", "small"), FREE, 101)
    assert isinstance(decision, Refuse)
    assert decision.quota
    assert decision.retry_after == 5.375
    assert isinstance(queue.offer(ticket("c", "large"), FREE, 101), Admit)
    assert isinstance(queue.offer(ticket("d", "small"), FREE, 106.375), Admit)


def test_a_held_request_counts_against_the_quota_from_its_offer_on():
    """Of 200 requests of 500 tokens that come while no worker has room, one is kept under a quota of 100."""
    queue = held(ticket("0", tokens=500), limits=AdmissionLimits(quotas={"*": Quota(rate=10, burst=100)}))
    for number in range(1, 200):
        decision = queue.offer(ticket(str(number), tokens=500, priority=number % 3), BUSY, 0)
        assert isinstance(decision, Refuse)
        assert decision.retry_after == pytest.approx(40.1)
    assert isinstance(queue.offer(ticket("other", "u"), BUSY, 0), Hold)
    assert queue.next(room(60), 0)[0] == "0"
    assert isinstance(queue.offer(ticket("b"), BUSY, 40), Refuse)
    assert isinstance(queue.offer(ticket("c"), BUSY, 40.2), Hold)


def test_a_held_request_that_is_cancelled_gives_its_quota_back():
    queue = held(ticket("a", tokens=150), limits=AdmissionLimits(quotas={"*": Quota(rate=10, burst=100)}))
    assert isinstance(queue.offer(ticket("b"), BUSY, 0), Refuse)
    queue.cancel("a")
    assert isinstance(queue.offer(ticket("b"), BUSY, 0), Hold)


def test_what_is_unknown_or_cancelled_counts_against_nothing():
    queue = Admission(AdmissionLimits(quotas={"*": Quota(rate=1, burst=100)}))
    queue.offer(ticket("a", tokens=10), FREE, 0)
    queue.cancel("a")
    for id in ("a", "unknown"):
        queue.progress(id, 1000)
        queue.finished(id, 1000)
    assert isinstance(queue.offer(ticket("b"), FREE, 0), Admit)


def test_output_counts_against_quota_and_share():
    queue = Admission(AdmissionLimits(quotas={"*": Quota(rate=1, burst=100)}, output_weight=2))
    queue.offer(ticket("a", tokens=10), FREE, 0)
    queue.progress("a", 30)
    queue.progress("a", 30)
    assert isinstance(queue.offer(ticket("b", tokens=10), FREE, 0), Admit)
    queue.finished("a", 45)
    decision = queue.offer(ticket("c"), FREE, 0)
    assert isinstance(decision, Refuse)
    assert decision.retry_after == pytest.approx(11)


def test_tenants_named_at_random_do_not_fill_the_memory():
    """Whether their requests start, wait and are given up, or are refused."""
    queue = Admission(AdmissionLimits(quotas={"*": Quota(1, 1000)}))
    for i in range(MAX_TENANTS + 100):
        queue.offer(ticket(str(i), f"started {i}"), FREE, 0)
        queue.finished(str(i), 5)
    assert remembered(queue) <= MAX_TENANTS
    for i in range(MAX_TENANTS + 100):
        queue.offer(ticket(str(i), f"waited {i}"), BUSY, 0)
        queue.cancel(str(i))
    assert remembered(queue) <= MAX_TENANTS
    for i in range(MAX_TENANTS + 100):
        assert isinstance(queue.offer(ticket(str(i), f"refused {i}", tokens=6000), FREE, 0), Refuse)
    assert remembered(queue) <= MAX_TENANTS


def remembered(queue: Admission) -> int:
    return max(len(queue._counters), len(queue._buckets))


def flood(queue: Admission, snapshot: FleetSnapshot) -> None:
    """More tenants than are remembered come and go, one after the other."""
    for i in range(MAX_TENANTS + 100):
        queue.offer(ticket(str(i), f"tenant {i}"), snapshot, 0)
        queue.finished(str(i), 5)
        queue.cancel(str(i))


@pytest.mark.parametrize(("tenant", "used", "goes_on"), [("own", 1, False), ("busy", 1, True), ("greedy", 900, False)])
def test_a_flood_of_names_gives_no_tenant_its_quota_back(tenant, used, goes_on):
    """Neither one with a quota of its own, nor one with requests here, nor one that used more than the flood."""
    queue = Admission(AdmissionLimits(quotas={"*": Quota(0.001, 1000), "own": Quota(0.001, 1000)}, output_weight=1))
    queue.offer(ticket("first", tenant, uncached=used), FREE, 0)
    if not goes_on:
        queue.finished("first", 0)
    flood(queue, FREE)
    if goes_on:
        queue.finished("first", 1000 - used)
    else:
        queue.offer(ticket("second", tenant, uncached=1000 - used), FREE, 0)
    assert isinstance(queue.offer(ticket("last", tenant), FREE, 0), Refuse)


def test_a_flood_of_names_forgets_nobody_with_requests_here():
    queue = Admission()
    queue.offer(ticket("started", "a"), FREE, 0)
    queue.offer(ticket("held", "b"), BUSY, 0)
    flood(queue, BUSY)
    queue.progress("started", 5)
    assert queue.next(FREE, 0) == ["held"]


@pytest.mark.parametrize("flooded", [False, True])
def test_what_a_tenant_was_served_counts_when_it_comes_back(flooded):
    """Even after a flood of names: those that were served least are forgotten first."""
    queue = Admission()
    queue.offer(ticket("first", "greedy"), FREE, 0)
    queue.finished("first", 10_000_000)
    if flooded:
        flood(queue, FREE)
    queue.offer(ticket("a", "modest"), BUSY, 0)
    queue.offer(ticket("b", "greedy"), BUSY, 0)
    assert drained(queue) == ["a", "b"]


def test_quotas_that_are_full_again_are_not_remembered():
    queue = Admission(AdmissionLimits(quotas={"*": Quota(1, 1000)}))
    for i in range(MAX_TENANTS):
        queue.offer(ticket(str(i), f"tenant {i}"), FREE, 0)
        queue.finished(str(i), 5)
    queue.offer(ticket("a", "a"), FREE, 1e6)
    assert len(queue._buckets) == 1
