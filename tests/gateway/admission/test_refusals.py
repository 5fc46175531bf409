"""Refusals: of requests that could never start, that would come too late, or that are too many to keep."""

from dataclasses import replace

import pytest
from tests.support.admission import BUSY, FREE, UNMEASURED, held, snapshot, ticket

from legato_gateway.admission.limits import AdmissionLimits, Quota
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import DEADLINE, NO_WORKER, QUEUE_FULL, QUOTA, TOO_LARGE, Admit, Hold, Refuse
from legato_gateway.routing.fleet_snapshot import FleetSnapshot

GRAMMAR = replace(ticket("a"), need=replace(ticket("a").need, grammar="regex"))


@pytest.mark.parametrize(
    ("never", "reason", "message"),
    [
        (ticket("a", tokens=995), TOO_LARGE, "u0 has 100 blocks"),
        (GRAMMAR, NO_WORKER, "u0 cannot make output match a grammar of kind regex"),
    ],
)
def test_a_request_that_no_worker_could_ever_take_is_refused_and_blocks_no_other(never, reason, message):
    """It waited in the queue until its deadline."""
    decision = Admission().offer(never, FREE, 0)
    assert (type(decision), decision.reason, decision.retry_after) == (Refuse, reason, 60)
    assert message in decision.message
    queue = Admission()
    queue.offer(never, FleetSnapshot(), 0)
    queue.offer(ticket("b"), FleetSnapshot(), 0)
    assert queue.next(FREE, 0) == ["b"]
    assert isinstance(Admission().offer(GRAMMAR, snapshot(grammars=("regex",)), 0), Admit)


@pytest.mark.parametrize("limits", [AdmissionLimits(max_held=3), AdmissionLimits(max_held_tokens=300)])
def test_the_queue_is_bounded(limits):
    queue = held(ticket("a"), ticket("b"), ticket("c"), limits=limits)
    decision = queue.offer(ticket("d"), BUSY, 0)
    assert (type(decision), decision.reason, decision.quota, decision.retry_after) == (Refuse, QUEUE_FULL, False, 1)


def test_a_deadline_that_cannot_be_met_is_refused_immediately():
    queue = held(*(ticket(str(i), tokens=500, deadline=0) for i in range(4)))
    for deadline, kind in ((2.0, Refuse), (2.7, Hold)):
        assert isinstance(queue.offer(ticket("x", deadline=10 + deadline, tokens=100), BUSY, 10), kind)
    light = queue.offer(ticket("y", tenant="other", deadline=10.9, tokens=100), BUSY, 10)
    assert isinstance(light, Hold), "its fair share comes before the queue of the heavy tenant"
    assert isinstance(queue.offer(ticket("z", deadline=10.01, tenant="z"), UNMEASURED, 10), Hold)


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
    """The other tenant catches up first."""
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
    limits = AdmissionLimits(max_held=5, quotas={"spent": Quota(0, 0)})
    decision = held(*(ticket(str(i), tokens=600, deadline=0) for i in range(5)), limits=limits).offer(refused, BUSY, 0)
    assert (type(decision), decision.reason, decision.retry_after) == (Refuse, reason, pytest.approx(retry_after))
    assert said in decision.message
