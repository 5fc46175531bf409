"""Requests start, wait (and for what), or are refused."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.admission import BUSY, FREE, UNMEASURED, held, room, snapshot, ticket, worker

from legato_gateway.admission.limits import AdmissionLimits, Quota
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import DEADLINE, NO_WORKER, QUEUE_FULL, QUOTA, TOO_LARGE, Admit, Hold, Refuse
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.scorers import Objectives


def test_the_only_worker_is_given_requests_though_it_failed_often():
    assert isinstance(Admission().offer(ticket("a"), snapshot(broken=True), 0), Admit)
    others = FleetSnapshot((*BUSY.workers, replace(FREE.workers[0], name="u1", broken=True)))
    assert isinstance(Admission().offer(ticket("a"), others, 0), Hold), "u0 is only full"


def test_one_snapshot_is_not_spent_twice():
    queue = held(*(ticket(str(i), tokens=300) for i in range(5)))
    assert queue.next(FREE, 0) == ["0", "1", "2"]


def test_a_cached_prefix_needs_no_room():
    queue = Admission()
    assert isinstance(queue.offer(ticket("new"), room(5), 0), Hold)
    queue.cancel("new")
    shared = [ticket(f"shared-{i}", uncached=30, matches={"u0": 8}) for i in range(2)]
    assert isinstance(queue.offer(shared[0], room(5), 0), Admit)
    assert isinstance(queue.offer(shared[1], room(2), 0), Hold)
    assert queue.next(room(3), 0) == ["shared-1"]


@pytest.mark.parametrize(("blocks", "outcome"), [(1, Hold), (2, Admit)])
def test_the_last_token_is_computed_even_if_the_whole_prompt_is_cached(blocks, outcome):
    whole = ticket("a", uncached=1, matches={"u0": 10})
    assert isinstance(Admission().offer(whole, room(blocks), 0), outcome)


@settings(max_examples=times(40), deadline=None)
@given(st.integers(0, 2**32))
def test_over_random_operations_nothing_is_lost_and_everything_starts(seed):
    source = random.Random(seed)
    queue = Admission(AdmissionLimits(max_queued=40))
    waiting, running = set[str](), set[str]()
    for step in range(120):
        kind = source.random()
        if kind < 0.5:
            deadline, priority = source.choice([1e9, step + 1, step + 30]), source.randint(-3, 3)
            one = ticket(str(step), source.choice("abc"), source.randint(1, 400), deadline=deadline, priority=priority)
            decision = queue.offer(one, source.choice([FREE, BUSY, room(20)]), step)
            (running if isinstance(decision, Admit) else waiting).add(one.id)
            if isinstance(decision, Refuse):
                waiting.remove(one.id)
                assert decision.reason == DEADLINE or len(waiting) == 40
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
        assert queue.queued == len(waiting)
    while waiting:
        started = queue.next(room(60), 1000)
        assert started, "with room for the largest, somebody starts"
        waiting -= set(started)
    assert queue.queued_tokens == 0


@settings(max_examples=times(20), deadline=None)
@given(st.integers(0, 2**32))
def test_backlogged_tenants_never_drift_apart(seed):
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


P0, D0, QUEUED = worker("p0"), worker("d0"), worker("p0", queue_tokens=20_000)
D1_FULL = worker("d1", free_blocks=0)


@pytest.mark.parametrize(
    ("workers", "cause"),
    [
        ((), "no_worker"),
        ((P0,), "no_worker"),
        ((P0, worker("d0", ready=False)), "no_worker"),
        ((P0, worker("d0", draining=True)), "no_worker"),
        ((P0, worker("d0", credits=0)), "credits"),
        ((P0, worker("d0", credits=0), D1_FULL), "decode_room"),
        ((QUEUED, worker("d0", free_blocks=0)), "decode_room"),  # prompts queue since nobody has room for them
        ((QUEUED, D0), "prefill"),
        ((QUEUED, worker("d0", max_length=50), D1_FULL), "decode_room"),
    ],
)
def test_what_the_first_queued_request_waits_for_is_known(workers, cause):
    queue, fleet = Admission(), FleetSnapshot(workers)
    assert queue.obstacle is None
    assert isinstance(queue.offer(ticket("a"), fleet, 0), Hold)
    assert queue.obstacle == cause
    assert queue.next(fleet, 1) == []
    assert queue.obstacle == cause


def test_the_obstacle_is_that_of_the_last_pass():
    queue = held(ticket("a"))
    assert queue.obstacle == "decode_room"
    for fleet, started, obstacle in (
        (snapshot(queue_tokens=20_000), [], "prefill"),
        (FleetSnapshot(), [], "no_worker"),
        (FREE, ["a"], None),
    ):
        assert (queue.next(fleet, 1), queue.obstacle) == (started, obstacle)


def fleet(queued: int) -> FleetSnapshot:
    """A worker that has `queued` prompt tokens; 8,192 are usual, and as many are computed in 4 s."""
    return snapshot(queue_tokens=queued, prefill_rate=2048.0, num_blocks=9000, free_blocks=9000, max_length=20_000)


def offer(queue: Admission, id: str, tenant: str, queued: int = 8000) -> Any:
    return queue.offer(ticket(id, tenant, 2000), fleet(queued), 0)


@pytest.fixture
def flooded() -> Admission:
    """One tenant has a prompt at the worker, whose queue is full, and one that waits for that here."""
    queue = Admission()
    offer(queue, "f0", "flood", 0)
    assert isinstance(offer(queue, "f1", "flood"), Hold)
    return queue


@pytest.mark.parametrize("ends", ["cancel", "finished", "progress"])
def test_its_first_prompt_does_not_wait_and_the_next_one_until_that_has_a_token_or_ended(flooded, ends):
    assert isinstance(offer(flooded, "l0", "light"), Admit)
    assert isinstance(offer(flooded, "l1", "light"), Hold)
    assert flooded.next(fleet(8000), 0) == []
    if ends == "cancel":
        flooded.cancel("l0")
    elif ends == "finished":
        flooded.finished("l0", 0)
    else:
        flooded.progress("l0", 1)
        flooded.progress("l0", 2)
    flooded.check_integrity()
    assert flooded.next(fleet(8000), 0) == ["l1"]
    flooded.check_integrity()


def test_queues_stay_bounded(flooded):
    assert isinstance(offer(flooded, "l0", "light", 15_000), Hold)
    assert flooded.next(fleet(15_000), 0) == []


def test_the_only_prompt_of_a_tenant_has_its_turn_among_tenants_and_its_second_one_has_not(flooded):
    offer(flooded, "l0", "light")
    assert flooded.alternating_tenants("light") == 2
    offer(flooded, "l1", "light")
    assert "l1" in flooded.next(fleet(0), 0)
    assert flooded.alternating_tenants("light") == 0
    queue = Admission()
    offer(queue, "a", "alone", 0)
    assert queue.alternating_tenants("alone") == 0, "nor has that of the only tenant"


def test_queued_prompts_decide_whether_decode_workers_help():
    """Two seconds of prompts are at the worker and one second more waits: not all is computed within the objective."""
    large = {"num_blocks": 9000, "free_blocks": 9000, "max_length": 20_000, "prefill_rate": 8192.0}
    workers = FleetSnapshot((worker("p0", queue_tokens=16_384, **large), worker("d0", **large)))
    queue = Admission(AdmissionLimits(objectives=Objectives(ttft=2.5, tpot=0.1)))
    for id in "ab":
        assert isinstance(queue.offer(ticket(id, tokens=4000), workers, 0), Hold)
    assert queue.next(workers, 0) == ["a", "b"]


GRAMMAR = replace(ticket("a"), need=replace(ticket("a").need, grammar="regex"))


@pytest.mark.parametrize(
    ("never", "reason", "message"),
    [
        (ticket("a", tokens=1000), TOO_LARGE, "u0 has 100 blocks"),
        (GRAMMAR, NO_WORKER, "u0 cannot make output match a grammar of kind regex"),
    ],
)
def test_a_request_that_no_worker_could_ever_take_is_refused_and_blocks_no_other(never, reason, message):
    decision = Admission().offer(never, FREE, 0)
    assert (type(decision), decision.reason, decision.retry_after) == (Refuse, reason, 60)
    assert message in decision.message
    queue = Admission()
    queue.offer(never, FleetSnapshot(), 0)
    queue.offer(ticket("b"), FleetSnapshot(), 0)
    assert queue.next(FREE, 0) == ["b"]
    assert isinstance(Admission().offer(GRAMMAR, snapshot(grammars=("regex",)), 0), Admit)


def test_queued_requests_that_no_worker_can_hold_are_refused_also_where_workers_come_back():
    queue = Admission()
    for _ in range(2):  # the second time, the workers have the limits of before
        queue.offer(ticket("a", tokens=1000), FleetSnapshot(), 0)
        queue.offer(ticket("b"), FleetSnapshot(), 0)
        assert [(id, refusal.reason) for id, refusal in queue.outgrown(FREE)] == [("a", TOO_LARGE)]
        assert queue.outgrown(FREE) == [], "they are judged once"
        queue.cancel("a")
        queue.cancel("b")


@pytest.mark.parametrize("limits", [AdmissionLimits(max_queued=3), AdmissionLimits(max_queued_tokens=300)])
def test_the_queue_is_bounded(limits):
    queue = held(ticket("a"), ticket("b"), ticket("c"), limits=limits)
    decision = queue.offer(ticket("d"), BUSY, 0)
    assert (type(decision), decision.reason, decision.quota, decision.retry_after) == (Refuse, QUEUE_FULL, False, 1)


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
        ((*((("other", 1, 100),) * 20), ("t", 0, 300)), 1500),  # … but has its share before them all have started
    ],
)
def test_the_wait_estimate_knows_whose_turn_comes_first(waiting, before):
    """A deadline is refused exactly where the tokens with an earlier turn, and its own, take longer."""
    tickets = [
        ticket(str(i), tenant, tokens, priority=level, deadline=0) for i, (tenant, level, tokens) in enumerate(waiting)
    ]
    for margin, kind in ((0.0005, Hold), (-0.0005, Refuse)):
        last = ticket("x", deadline=(before + 100) / 1000 + margin)
        assert isinstance(held(*tickets).offer(last, BUSY, 0), kind), margin


@pytest.mark.parametrize(("served", "kind"), [(0, Refuse), (5000, Hold)])
def test_the_wait_estimate_knows_the_service_of_the_others(served, kind):
    """A tenant that was served more than this one waits for it."""
    queue = Admission()
    queue.offer(ticket("started", "other", 100), FREE, 0)
    queue.offer(ticket("mine", "t", 100), FREE, 0)
    for id in ("a", "b"):
        assert isinstance(queue.offer(ticket(id, "t", 200, deadline=0), UNMEASURED, 0), Hold)
    assert isinstance(queue.offer(ticket("c", "other", 300), BUSY, 0), Hold)
    queue.progress("started", served // 2)
    assert isinstance(queue.offer(ticket("x", deadline=0.65, tokens=100), BUSY, 0), kind)


@pytest.mark.parametrize(("deadline", "kind"), [(0.299, Refuse), (0.301, Hold)])
def test_the_wait_estimate_knows_the_service_of_its_own_tenant(deadline, kind):
    queue = Admission()
    queue.offer(ticket("started", "t", 100), FREE, 0)
    queue.progress("started", 100)  # tokens of output count twice
    queue.offer(ticket("waiting", "other", 900), BUSY, 0)
    assert isinstance(queue.offer(ticket("x", "t", 100, deadline=deadline), BUSY, 0), kind)


@pytest.mark.parametrize(
    ("refused", "reason", "said", "retry_after"),
    [
        (ticket("x", tokens=995), TOO_LARGE, "u0 has 100 blocks", 60),
        (ticket("x", deadline=0.5, tokens=900), DEADLINE, "3.9 s away, beyond the deadline in 0.5 s", 3.4),
        (ticket("x", deadline=3.5, tokens=900), DEADLINE, "3.9 s away, beyond the deadline in 3.5 s", 1),
        (ticket("x", "spent"), QUOTA, "'spent'", 3600),  # it will never have any
        (ticket("x"), QUEUE_FULL, "5 requests with 3000 prompt tokens", 3),
    ],
)
def test_a_refusal_tells_why_and_when_to_come_back(refused, reason, said, retry_after):
    limits = AdmissionLimits(max_queued=5, quotas={"spent": Quota(0, 0)})
    decision = held(*(ticket(str(i), tokens=600, deadline=0) for i in range(5)), limits=limits).offer(refused, BUSY, 0)
    assert (type(decision), decision.reason, decision.retry_after) == (Refuse, reason, pytest.approx(retry_after))
    assert said in decision.message
