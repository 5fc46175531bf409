"""Who starts, waits or is refused: fairness, bounded starvation, deadlines, quotas, bounds."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.admission import queue as admission
from legato_gateway.admission.queue import Admission, AdmissionLimits, Admit, Hold, Quota, Refuse, Ticket
from legato_gateway.routing.filters import Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView


def snapshot(**overrides: Any) -> FleetSnapshot:
    """One unified worker with 100 blocks of 10 tokens that computes 1,000 tokens a second."""
    fields = {"num_blocks": 100, "free_blocks": 100, "prefill_rate": 1000.0, "max_length": 5000, **overrides}
    return FleetSnapshot((WorkerView("u0", "unified", "e", "r", 10, **fields),))


BUSY = snapshot(free_blocks=0)
FREE = snapshot()


def room(blocks: int) -> FleetSnapshot:
    return snapshot(free_blocks=blocks)


def ticket(id: str, tenant: str = "t", tokens: int = 100, **overrides: Any) -> Ticket:
    fields = {"uncached": tokens, "deadline": 1e9, **overrides}
    return Ticket(tenant, Need(id, tokens, 10), **fields)


def held(*tickets: Ticket, limits: AdmissionLimits | None = None) -> Admission:
    queue = Admission(limits)
    for one in tickets:
        assert isinstance(queue.offer(one, BUSY, 0), Hold)
    return queue


def drained(queue: Admission, rounds: int = 10_000) -> list[str]:
    """The order in which held requests start when there is room for about one at a time."""
    order: list[str] = []
    for _ in range(rounds):
        started = queue.next(room(11), 0)
        if not started:
            break
        order += started
        for id in started:
            queue.finished(id, 0)
    return order


def test_with_room_a_request_starts_at_once_and_without_it_waits() -> None:
    queue = Admission()
    assert isinstance(queue.offer(ticket("a"), FREE, 0), Admit)
    assert isinstance(queue.offer(ticket("b"), BUSY, 0), Hold)
    assert (queue.held, queue.held_tokens) == (1, 100)
    assert queue.next(BUSY, 0) == []
    assert queue.next(FREE, 0) == ["b"]
    assert (queue.held, queue.held_tokens) == (0, 0)


def test_the_only_worker_is_given_requests_though_it_failed_often() -> None:
    assert isinstance(Admission().offer(ticket("a"), snapshot(broken=True), 0), Admit)
    others = FleetSnapshot((*BUSY.workers, replace(FREE.workers[0], name="u1", broken=True)))
    assert isinstance(Admission().offer(ticket("a"), others, 0), Hold), "u0 is only full"


def test_nothing_overtakes_a_held_request_that_is_too_large_for_now() -> None:
    queue = held(ticket("large", tokens=500), ticket("small", tokens=10))
    assert queue.next(room(20), 0) == []
    assert isinstance(queue.offer(ticket("new", tokens=10), room(20), 0), Hold)
    assert queue.next(FREE, 0) == ["large", "small", "new"]


def test_one_snapshot_is_not_spent_twice() -> None:
    queue = held(*(ticket(str(i), tokens=300) for i in range(5)))
    assert queue.next(FREE, 0) == ["0", "1", "2"]


def test_a_long_prefill_queue_holds_requests_here() -> None:
    limits = AdmissionLimits(backlog_seconds=1.0, min_backlog_tokens=100)
    queue = Admission(limits)
    assert isinstance(queue.offer(ticket("a"), snapshot(queue_tokens=950), 0), Hold)
    assert queue.next(snapshot(queue_tokens=950), 0) == []
    assert queue.next(snapshot(queue_tokens=900), 0) == ["a"]


def test_without_workers_requests_wait_for_some() -> None:
    queue = Admission()
    assert isinstance(queue.offer(ticket("a"), FleetSnapshot(), 0), Hold)
    assert queue.next(FleetSnapshot(), 0) == []
    assert queue.next(FREE, 0) == ["a"]


def test_what_no_worker_could_ever_hold_is_refused_and_holds_up_nobody() -> None:
    decision = Admission().offer(ticket("a", tokens=995), FREE, 0)
    assert isinstance(decision, Refuse)
    assert decision.reason == admission.TOO_LARGE
    queue = Admission()
    queue.offer(ticket("a", tokens=995), FleetSnapshot(), 0)
    queue.offer(ticket("b"), FleetSnapshot(), 0)
    assert queue.next(FREE, 0) == ["b"]


@pytest.mark.parametrize("limits", [AdmissionLimits(max_held=3), AdmissionLimits(max_held_tokens=300)])
def test_the_queue_is_bounded(limits: AdmissionLimits) -> None:
    queue = held(ticket("a"), ticket("b"), ticket("c"), limits=limits)
    decision = queue.offer(ticket("d"), BUSY, 0)
    assert isinstance(decision, Refuse)
    assert (decision.reason, decision.quota) == (admission.QUEUE_FULL, False)
    assert decision.retry_after == 1


def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    queue = held(*(ticket(str(i), tokens=500) for i in range(4)))
    for deadline, kind in ((2.0, Refuse), (2.7, Hold)):
        assert isinstance(queue.offer(ticket("x", deadline=10 + deadline, tokens=100), BUSY, 10), kind)
    light = queue.offer(ticket("y", tenant="other", deadline=10.9, tokens=100), BUSY, 10)
    assert isinstance(light, Hold), "its fair share comes before the queue of the heavy tenant"
    unmeasured = snapshot(free_blocks=0, prefill_rate=0.0)
    assert isinstance(queue.offer(ticket("z", deadline=10.01, tenant="z"), unmeasured, 10), Hold)


@pytest.mark.parametrize(
    ("waiting", "before"),
    [
        ((("t", 0, 300), ("t", 0, 200)), 500),  # its own tenant's come first, all of them
        ((("other", 0, 900),), 0),  # one that was served as little has its turn no earlier
        ((("t", 0, 300), ("other", 0, 900)), 600),  # the other one's, as far as its own tenant's turn is away
        ((("t", 0, 300), ("other", 0, 100)), 400),  # … and no more than there are
        ((("other", 1, 900),), 900),  # a higher priority comes first, whoever's it is
        ((("other", 1, 900), ("t", 0, 300)), 1200),  # … and before its own tenant's
        ((("t", 0, 300), ("other", 1, 900), ("t", 2, 100)), 1300),
        ((("t", -1, 900),), 0),  # a lower one does not
    ],
)
def test_the_wait_estimate_knows_whose_turn_comes_first(waiting: tuple[tuple[str, int, int], ...], before: int) -> None:
    """A deadline is refused exactly where the tokens with an earlier turn, and its own, take longer."""
    for margin, kind in ((0.0005, Hold), (-0.0005, Refuse)):
        tickets = [
            ticket(str(i), tenant, tokens, priority=priority) for i, (tenant, priority, tokens) in enumerate(waiting)
        ]
        queue = held(*tickets)
        deadline = (before + 100) / 1000 + margin
        assert isinstance(queue.offer(ticket("x", deadline=deadline), BUSY, 0), kind), margin


def test_the_wait_estimate_knows_what_the_others_were_served() -> None:
    """A tenant that was served more than this one waits behind it."""
    for served, kind in ((0, Refuse), (5000, Hold)):
        queue = Admission()
        queue.offer(ticket("started", "other", 100), FREE, 0)
        queue.offer(ticket("mine", "t", 100), FREE, 0)
        for id in ("a", "b"):
            assert isinstance(queue.offer(ticket(id, "t", 200), BUSY, 0), Hold)
        assert isinstance(queue.offer(ticket("c", "other", 300), BUSY, 0), Hold)
        queue.progress("started", served // 2)
        decision = queue.offer(ticket("x", deadline=0.65, tokens=100), BUSY, 0)
        assert isinstance(decision, kind), served


def test_the_wait_estimate_knows_what_its_own_tenant_was_served() -> None:
    """The other tenant catches up first."""
    for deadline, kind in ((0.299, Refuse), (0.301, Hold)):
        queue = Admission()
        queue.offer(ticket("started", "t", 100), FREE, 0)
        queue.progress("started", 100)  # tokens of output count twice
        queue.offer(ticket("waiting", "other", 900), BUSY, 0)
        assert isinstance(queue.offer(ticket("x", "t", 100, deadline=deadline), BUSY, 0), kind), deadline


@pytest.mark.parametrize(
    ("refused", "reason", "said", "retry_after"),
    [
        (ticket("x", tokens=995), admission.TOO_LARGE, "u0 has 100 blocks", 60),
        (ticket("x", deadline=0.5, tokens=900), admission.DEADLINE, "3.9 s away, beyond the deadline in 0.5 s", 3.4),
        (ticket("x", deadline=3.5, tokens=900), admission.DEADLINE, "3.9 s away, beyond the deadline in 3.5 s", 1),
        (ticket("x", "spent"), admission.QUOTA, "'spent'", 3600),  # it will never have any
        (ticket("x"), admission.QUEUE_FULL, "5 requests with 3000 prompt tokens", 3),
    ],
)
def test_a_refusal_tells_why_and_when_to_come_back(refused: Ticket, reason: str, said: str, retry_after: float) -> None:
    limits = AdmissionLimits(max_held=5, quotas={"spent": Quota(0, 0)})
    decision = held(*(ticket(str(i), tokens=600) for i in range(5)), limits=limits).offer(refused, BUSY, 0)
    assert isinstance(decision, Refuse)
    assert decision.reason == reason
    assert said in decision.message
    assert decision.retry_after == pytest.approx(retry_after)


def test_a_prefix_that_is_held_already_needs_no_room() -> None:
    queue = Admission()
    assert isinstance(queue.offer(ticket("new"), room(5), 0), Hold)
    queue.cancel("new")
    shared = [ticket(f"shared-{i}", uncached=30, matches={"u0": 8}) for i in range(2)]
    assert isinstance(queue.offer(shared[0], room(5), 0), Admit)
    assert isinstance(queue.offer(shared[1], room(2), 0), Hold)
    assert queue.next(room(3), 0) == ["shared-1"]


def test_the_last_token_is_computed_even_if_the_whole_prompt_is_held() -> None:
    whole = ticket("a", uncached=1, matches={"u0": 10})
    assert isinstance(Admission().offer(whole, room(1), 0), Hold)
    assert isinstance(Admission().offer(whole, room(2), 0), Admit)


def test_a_tenant_beyond_its_quota_is_told_when_to_come_back() -> None:
    queue = Admission(AdmissionLimits(quotas={"small": Quota(rate=8, burst=100)}))
    assert isinstance(queue.offer(ticket("a", "small", 150), FREE, 100), Admit)
    decision = queue.offer(ticket("b", "small"), FREE, 101)
    assert isinstance(decision, Refuse)
    assert decision.quota
    assert decision.retry_after == 5.375
    assert isinstance(queue.offer(ticket("c", "large"), FREE, 101), Admit)
    assert isinstance(queue.offer(ticket("d", "small"), FREE, 106.375), Admit)


def test_a_held_request_counts_against_the_quota_when_it_starts() -> None:
    queue = held(ticket("a", tokens=150), limits=AdmissionLimits(quotas={"*": Quota(rate=10, burst=100)}))
    assert isinstance(queue.offer(ticket("b"), BUSY, 0), Hold)
    assert queue.next(room(16), 100) == ["a"]
    assert isinstance(queue.offer(ticket("c"), BUSY, 101), Refuse)


def test_what_is_unknown_or_cancelled_counts_against_nothing() -> None:
    queue = Admission(AdmissionLimits(quotas={"*": Quota(rate=1, burst=100)}))
    queue.offer(ticket("a", tokens=10), FREE, 0)
    queue.cancel("a")
    for id in ("a", "unknown"):
        queue.progress(id, 1000)
        queue.finished(id, 1000)
    assert isinstance(queue.offer(ticket("b"), FREE, 0), Admit)


def test_output_counts_against_quota_and_share() -> None:
    queue = Admission(AdmissionLimits(quotas={"*": Quota(rate=1, burst=100)}, output_weight=2))
    queue.offer(ticket("a", tokens=10), FREE, 0)
    queue.progress("a", 30)
    queue.progress("a", 30)
    assert isinstance(queue.offer(ticket("b", tokens=10), FREE, 0), Admit)
    queue.finished("a", 45)
    decision = queue.offer(ticket("c"), FREE, 0)
    assert isinstance(decision, Refuse)
    assert decision.retry_after == pytest.approx(11)


def test_two_tenants_share_evenly_however_many_requests_each_has() -> None:
    queue = held(*(ticket(f"a{i}", "a") for i in range(50)), *(ticket(f"b{i}", "b") for i in range(10)))
    assert Counter(id[0] for id in drained(queue, 20)) == {"a": 10, "b": 10}


def test_shares_are_in_tokens_not_requests() -> None:
    queue = held(*(ticket(f"a{i}", "a", 100) for i in range(60)), *(ticket(f"b{i}", "b", 20) for i in range(200)))
    served: Counter[str] = Counter()
    for _ in range(100):
        for id in queue.next(room(11), 0):
            served[id[0]] += 100 if id[0] == "a" else 20
        assert abs(served["a"] - served["b"]) <= 100 + 60  # one large request, or what fits of small ones
    assert min(served.values()) > 1000


def test_idleness_earns_no_credit() -> None:
    queue = held(*(ticket(f"a{i}", "a") for i in range(100)))
    drained(queue, 50)
    for i in range(50):
        queue.offer(ticket(f"b{i}", "b"), BUSY, 0)
    assert Counter(id[0] for id in drained(queue, 20))["b"] <= 11


def test_higher_priorities_go_first_but_starve_nobody() -> None:
    limits = AdmissionLimits(patience=3)
    queue = held(
        *(ticket(f"low{i}", priority=-1) for i in range(3)),
        *(ticket(f"mid{i}") for i in range(4)),
        *(ticket(f"top{i}", "other", priority=5) for i in range(30)),
        limits=limits,
    )
    order = drained(queue)
    assert len(order) == 37
    for name in ("low", "mid"):
        turns = [i for i, id in enumerate(order) if id.startswith(name)]
        assert max(b - a for a, b in zip([-1, *turns], turns, strict=False)) <= 3 + 2
    assert order[:3] == ["top0", "top1", "top2"]


def test_after_its_turn_a_priority_is_patient_again() -> None:
    queue = held(
        *(ticket(f"low{i}", priority=-1) for i in range(2)),
        *(ticket(f"top{i}") for i in range(7)),
        limits=AdmissionLimits(patience=3),
    )
    assert drained(queue) == ["top0", "top1", "top2", "low0", "top3", "top4", "top5", "low1", "top6"]


def test_of_those_out_of_patience_the_one_passed_over_most_often_goes_first() -> None:
    queue = held(
        ticket("mid", priority=2),
        ticket("low", priority=1),
        *(ticket(f"top{i}", priority=3) for i in range(5)),
        limits=AdmissionLimits(patience=2),
    )
    assert drained(queue, 1) == ["top0"]
    queue.offer(ticket("late", priority=0), BUSY, 0)
    assert drained(queue, 4) == ["top1", "mid", "low", "late"]


def test_cancelled_requests_never_start() -> None:
    queue = held(ticket("a"), ticket("b"))
    queue.cancel("a")
    queue.cancel("unknown")
    assert queue.next(FREE, 0) == ["b"]
    queue.check_integrity()


def test_tenants_named_at_random_do_not_fill_the_memory() -> None:
    """Whether their requests start, wait and are given up, or are refused."""
    queue = Admission(AdmissionLimits(quotas={"*": Quota(1, 1000)}))
    for i in range(admission.MAX_TENANTS + 100):
        queue.offer(ticket(str(i), f"started {i}"), FREE, 0)
        queue.finished(str(i), 5)
    assert remembered(queue) <= admission.MAX_TENANTS
    for i in range(admission.MAX_TENANTS + 100):
        queue.offer(ticket(str(i), f"waited {i}"), BUSY, 0)
        queue.cancel(str(i))
    assert remembered(queue) <= admission.MAX_TENANTS
    for i in range(admission.MAX_TENANTS + 100):
        assert isinstance(queue.offer(ticket(str(i), f"refused {i}", tokens=6000), FREE, 0), Refuse)
    assert remembered(queue) <= admission.MAX_TENANTS


def remembered(queue: Admission) -> int:
    return max(len(queue._counters), len(queue._buckets))


def flood(queue: Admission, snapshot: FleetSnapshot) -> None:
    """More tenants than are remembered come and go, one after the other."""
    for i in range(admission.MAX_TENANTS + 100):
        queue.offer(ticket(str(i), f"tenant {i}"), snapshot, 0)
        queue.finished(str(i), 5)
        queue.cancel(str(i))


@pytest.mark.parametrize(("tenant", "used", "goes_on"), [("own", 1, False), ("busy", 1, True), ("greedy", 900, False)])
def test_a_flood_of_names_gives_no_tenant_its_quota_back(tenant: str, used: int, goes_on: bool) -> None:
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


def test_a_flood_of_names_forgets_nobody_with_requests_here() -> None:
    queue = Admission()
    queue.offer(ticket("started", "a"), FREE, 0)
    queue.offer(ticket("held", "b"), BUSY, 0)
    flood(queue, BUSY)
    queue.progress("started", 5)
    assert queue.next(FREE, 0) == ["held"]


@pytest.mark.parametrize("flooded", [False, True])
def test_what_a_tenant_was_served_counts_when_it_comes_back(flooded: bool) -> None:
    """Even after a flood of names: those that were served least are forgotten first."""
    queue = Admission()
    queue.offer(ticket("first", "greedy"), FREE, 0)
    queue.finished("first", 10_000_000)
    if flooded:
        flood(queue, FREE)
    queue.offer(ticket("a", "modest"), BUSY, 0)
    queue.offer(ticket("b", "greedy"), BUSY, 0)
    assert drained(queue) == ["a", "b"]


def test_quotas_that_are_full_again_are_not_remembered() -> None:
    queue = Admission(AdmissionLimits(quotas={"*": Quota(1, 1000)}))
    for i in range(admission.MAX_TENANTS):
        queue.offer(ticket(str(i), f"tenant {i}"), FREE, 0)
        queue.finished(str(i), 5)
    queue.offer(ticket("a", "a"), FREE, 1e6)
    assert len(queue._buckets) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_over_random_operations_nothing_is_lost_and_everything_starts(seed: int) -> None:
    source = random.Random(seed)
    queue = Admission(AdmissionLimits(max_held=40, patience=2))
    waiting: set[str] = set()
    running: set[str] = set()
    for step in range(120):
        kind = source.random()
        if kind < 0.5:
            one = ticket(str(step), source.choice("abc"), source.randint(1, 400), priority=source.randint(-1, 1))
            decision = queue.offer(one, source.choice([FREE, BUSY, room(20)]), step)
            (running if isinstance(decision, Admit) else waiting).add(one.id)
            if isinstance(decision, Refuse):
                waiting.remove(one.id)
                assert len(waiting) == 40
        elif kind < 0.75:
            started = queue.next(room(source.randint(0, 100)), step)
            assert set(started) <= waiting
            waiting -= set(started)
            running |= set(started)
        elif kind < 0.85 and waiting:
            gone = source.choice(sorted(waiting))
            waiting.remove(gone)
            queue.cancel(gone)
        elif running:
            done = source.choice(sorted(running))
            running.remove(done)
            queue.finished(done, source.randint(0, 50))
        queue.check_integrity()
        assert queue.held == len(waiting)
    while waiting:
        started = queue.next(room(60), 1000)
        assert started, "with room for the largest, somebody starts"
        waiting -= set(started)
    assert queue.held_tokens == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_backlogged_tenants_never_drift_apart(seed: int) -> None:
    """VTC's bound: while both wait, weighted service differs by no more than the largest request costs."""
    source = random.Random(seed)
    queue = Admission(AdmissionLimits(output_weight=2))
    costs: dict[str, tuple[str, int, int]] = {}
    for tenant in "ab":
        least, most_output = source.randint(51, 100), source.randint(0, 100)
        for i in range(60):
            prompt, output = source.randint(least, 100), source.randint(0, most_output)
            costs[f"{tenant}{i}"] = (tenant, prompt, output)
            queue.offer(ticket(f"{tenant}{i}", tenant, prompt), BUSY, 0)
    served, left = Counter({"a": 0, "b": 0}), Counter({"a": 60, "b": 60})
    while min(left.values()) > 0:
        (id,) = queue.next(room(11), 0)
        tenant, prompt, output = costs[id]
        queue.finished(id, output)
        served[tenant] += prompt + 2 * output
        left[tenant] -= 1
        assert abs(served["a"] - served["b"]) <= 100 + 2 * 100


def decoder(name: str = "d0", **overrides: Any) -> WorkerView:
    fields = {"num_blocks": 100, "free_blocks": 100, "max_length": 5000, **overrides}
    return WorkerView(name, "decode", "e", "r", 10, **fields)


def prefiller(queue_tokens: int = 0) -> WorkerView:
    return WorkerView("p0", "prefill", "e", "r", 10, 100, 5000, free_blocks=100, queue_tokens=queue_tokens)


@pytest.mark.parametrize(
    ("workers", "cause"),
    [
        ((), "no_worker"),
        ((prefiller(),), "no_worker"),
        ((prefiller(), decoder(ready=False)), "no_worker"),
        ((prefiller(), decoder(draining=True)), "no_worker"),
        ((prefiller(), decoder(credits=0)), "credits"),
        ((prefiller(), decoder(credits=0), decoder("d1", free_blocks=0)), "decode_room"),
        ((prefiller(20_000), decoder(free_blocks=0)), "decode_room"),  # prompts queue since nobody has room for them
        ((prefiller(20_000), decoder()), "prefill"),
        ((prefiller(20_000), decoder(max_length=50), decoder("d1", free_blocks=0)), "decode_room"),
    ],
)
def test_what_the_first_held_request_waits_for_is_known(workers: tuple[WorkerView, ...], cause: str) -> None:
    queue, fleet = Admission(), FleetSnapshot(workers)
    assert queue.obstacle is None
    assert isinstance(queue.offer(ticket("a"), fleet, 0), Hold)
    assert queue.obstacle == cause
    assert queue.next(fleet, 1) == []
    assert queue.obstacle == cause


def test_the_obstacle_is_that_of_the_last_look() -> None:
    queue = held(ticket("a"))
    assert queue.obstacle == "decode_room"
    assert queue.next(snapshot(queue_tokens=20_000), 1) == []
    assert queue.obstacle == "prefill"
    assert queue.next(FleetSnapshot(), 2) == []
    assert queue.obstacle == "no_worker"
    assert queue.next(FREE, 3) == ["a"]
    assert queue.obstacle is None


def test_who_comes_later_does_not_change_what_the_first_waits_for() -> None:
    queue = held(ticket("a"))
    assert isinstance(queue.offer(ticket("b"), snapshot(queue_tokens=20_000), 1), Hold)
    assert queue.obstacle == "decode_room"
