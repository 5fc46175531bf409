"""Requests that would miss the objective are refused, and their clients return one after the other."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.admission import held, ticket, worker

from legato_gateway import policy
from legato_gateway.admission.demand import Demand
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.overload import LONGEST_RETRY, QueuePace, RetryTimes
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import DEADLINE, LATE, QUEUE_FULL, Admit, Hold, Refuse
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.routing.scorers import Objectives, usual_tokens
from legato_protocol.wire.load import DecodeCoefficients, PrefillCoefficients

GOAL = Objectives(ttft=2.0, tpot=0.1)
REFUSING = AdmissionLimits(refuse_beyond=GOAL)
LARGE: Any = {"num_blocks": 1000, "free_blocks": 1000}
GROWING: Any = {"running": 2, "growth_blocks": 12, "next_growth_blocks": 6}
SLOW_ROWS = DecodeCoefficients(0.01, 0.02, 0.0)
A = ticket("a")


def unified(queued: int = 0, **overrides: Any) -> FleetSnapshot:
    return FleetSnapshot((worker("u0", **{**LARGE, "queue_tokens": queued, **overrides}),))


@pytest.mark.parametrize(
    ("fleet", "request_", "outcome"),
    [
        (unified(), A, Admit),
        (unified(940), A, Admit),  # half of the 2 s, less its own 0.1 s
        (unified(960), A, Refuse),
        (unified(940), replace(A, need=replace(A.need, waited=0.1)), Refuse),  # it was tokenized for long
        (unified(960, prefill_rate=0.0), A, Admit),  # nothing was measured
        (unified(940), ticket("a", tokens=800), Refuse),
        (unified(940), ticket("a", tokens=3000), Admit),  # longer than the objective in any case
        (unified(1060), ticket("a", tokens=3000), Refuse),
        (FleetSnapshot((*unified(960).workers, worker("u1", **LARGE))), A, Admit),
        (unified(running=4, decode_cost=SLOW_ROWS), ticket("a", tokens=3), Hold),  # steps of 110 ms
        (unified(running=3, decode_cost=DecodeCoefficients(0.015, 0.02, 0.0)), ticket("a", tokens=3), Hold),  # 95 ms
        (unified(running=3, decode_cost=DecodeCoefficients(0.009, 0.02, 0.0)), ticket("a", tokens=3), Admit),  # 89 ms
        (unified(decode_cost=DecodeCoefficients(0.5, 0, 0)), A, Admit),  # alone, it is late on any worker
        (unified(free_blocks=30, **GROWING), A, Admit),  # it wants 11, and perhaps 6 more
        (unified(free_blocks=28, **GROWING), A, Hold),
        (unified(free_blocks=30, **GROWING, asked_blocks=5), A, Hold),
        (unified(free_blocks=30, **GROWING, pending_sequences=1), A, Hold),
        (unified(free_blocks=29, running=2, growth_blocks=12), A, Admit),  # of an older worker
        (unified(free_blocks=28, running=2, growth_blocks=12), A, Hold),
        (unified(ready=False, free_blocks=0), A, Hold),  # the first worker is starting
    ],
)
def test_a_request_is_refused_if_its_first_token_would_be_late(fleet, request_, outcome):
    decision = Admission(REFUSING).offer(request_, fleet, 0)
    assert isinstance(decision, outcome)
    assert not isinstance(decision, Refuse) or decision.reason == LATE
    assert not isinstance(Admission().offer(request_, fleet, 0), Refuse), "by default, requests queue"


@pytest.mark.parametrize(("request_", "arrivals"), [(A, 1), (ticket("a", tokens=9000), 0)])
def test_pools_grow_for_late_requests_but_not_for_those_that_never_fit(request_, arrivals):
    demand = Demand()
    fleet = unified(960, free_blocks=500, num_blocks=500)
    assert isinstance(policy.offer(Admission(REFUSING), demand, request_, fleet, 0), Refuse)
    assert len(demand.arrivals.buckets()) == arrivals


def test_while_nothing_starts_the_queue_stays_short():
    queue, full = Admission(REFUSING), unified(free_blocks=0)
    outcomes = [type(queue.offer(ticket(str(i)), full, 0.1 * i)) for i in range(50)]
    assert outcomes[:3] == [Hold] * 3
    assert outcomes[-40:] == [Refuse] * 40
    queue, starting = Admission(REFUSING), unified(ready=False)
    outcomes = [type(queue.offer(ticket(str(i)), starting, 0.1 * i)) for i in range(50)]
    assert outcomes == [Hold] * 50, "while the first worker starts, they wait for it"


def test_a_request_whose_context_is_slow_starts_at_last_on_an_idle_worker():
    """Steps of a row and 10 tokens of context take 30 ms; with the long one's, 130 ms."""
    queue = Admission(AdmissionLimits(refuse_beyond=replace(GOAL, ttft=60.0)))
    busy = unified(running=1, decode_cost=DecodeCoefficients(0.01, 0.01, 1e-4))
    assert isinstance(queue.offer(ticket("long", tokens=1000), busy, 0), Hold)
    assert isinstance(queue.offer(ticket("short"), busy, 0.1), Admit)
    assert isinstance(queue.offer(ticket("later"), unified(free_blocks=0), 0.2), Hold)
    assert queue.next(busy, 20) == []
    assert queue.next(unified(), 21) == ["long", "later"]


def test_the_pace_of_a_queue_follows_its_starts():
    pace = QueuePace()
    for tick in range(1, 101):
        pace.advance(tick > 1, tick)
        pace.count_start()
    assert pace.wait(3) == pytest.approx(3, rel=0.1), "one start a second"
    pace.advance(False, 101)
    assert pace.wait(3) == pytest.approx(3, rel=0.1), "an empty queue is no slow one"
    pace.advance(False, 1000)
    assert pace.wait(3) < 0.1, "an old pace means nothing"
    for tick in range(1001, 1101):
        pace.advance(True, tick)
    assert pace.wait(3) > 40


def test_refused_clients_return_at_the_rate_of_the_service():
    times = RetryTimes()
    first = [times.after(2.0, 0.5, now=10) for _ in range(100)]
    assert first == [2 + 0.5 * i for i in range(100)]
    later = [times.after(2.0, 0.5, now=11) for _ in range(100)]
    assert max(later) <= LONGEST_RETRY
    assert min(later) == 2, "who cannot be given a later time comes sooner"
    assert times.after(90.0, 0.5, now=11) == 90


@pytest.mark.parametrize(
    ("limits", "deadline", "reason"),
    [(AdmissionLimits(), 0.5, DEADLINE), (AdmissionLimits(max_queued=2), 1e9, QUEUE_FULL), (REFUSING, 1e9, LATE)],
)
def test_every_refusal_under_load_spreads_retries(limits, deadline, reason):
    queue = held(*(ticket(str(i), tokens=900, deadline=0) for i in range(2)), limits=limits)
    refusals = [queue.offer(ticket("x", tokens=500, deadline=deadline), unified(free_blocks=0), 0) for _ in range(3)]
    assert [refusal.reason for refusal in refusals] == [reason] * 3
    first, second, third = (refusal.retry_after for refusal in refusals)
    assert (second - first, third - second) == (pytest.approx(0.5), pytest.approx(0.5)), "500 of 1,000 tokens a second"


COST = PrefillCoefficients(0.01, 1e-4, 1e-8, 1000, context=1000)


@pytest.mark.parametrize(
    ("prompt", "uncached", "tokens"),
    [(2000, 2000, 2000), (50_000, 50_000, 150_000), (50_000, 1000, 5033), (10, 10, 9), (1, 1, 1)],
)
def test_long_prompts_cost_what_they_take(prompt, uncached, tokens):
    assert usual_tokens(COST, prompt, uncached) == pytest.approx(tokens, rel=0.01)


def test_a_queue_is_full_by_its_tokens_and_not_by_their_cost():
    long = replace(ticket("long", tokens=900, deadline=1e9), work=5000)
    queue = held(long, limits=AdmissionLimits(max_queued_tokens=1000))
    assert (queue.queued_tokens, queue.queued_cost) == (900, 5000)
    assert isinstance(queue.offer(ticket("short", tokens=100, deadline=1e9), unified(free_blocks=0), 0), Hold)
    queue.check_integrity()


def test_a_tenant_is_charged_for_the_work_of_its_prompts():
    tickets = [replace(ticket(f"a{i}", "a"), work=300) for i in range(2)] + [ticket(f"b{i}", "b") for i in range(4)]
    queue, order = held(*tickets), list[str]()
    while queue.queued:
        order += queue.next(unified(free_blocks=11), 0)
    assert order == ["a0", "b0", "b1", "b2", "a1", "b3"]
