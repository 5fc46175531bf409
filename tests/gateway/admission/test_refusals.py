"""What is refused: what could never start, what would come too late, what is too much to keep."""

from dataclasses import replace

import pytest
from tests.support.admission import BUSY, FREE, UNMEASURED, held, snapshot, ticket

from legato_gateway.admission.limits import AdmissionLimits, Quota
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import DEADLINE, QUEUE_FULL, QUOTA, TOO_LARGE, Admit, Hold, Refuse
from legato_gateway.routing.fleet_snapshot import FleetSnapshot


def test_what_no_worker_could_ever_hold_is_refused_and_holds_up_nobody():
    decision = Admission().offer(ticket("a", tokens=995), FREE, 0)
    assert isinstance(decision, Refuse)
    assert decision.reason == TOO_LARGE
    queue = Admission()
    queue.offer(ticket("a", tokens=995), FleetSnapshot(), 0)
    queue.offer(ticket("b"), FleetSnapshot(), 0)
    assert queue.next(FREE, 0) == ["b"]


def test_a_grammar_that_no_worker_obeys_is_refused_and_holds_up_nobody():
    """It waited in the queue until its deadline."""
    asked = ticket("a")
    asked = replace(asked, need=replace(asked.need, grammar="regex"))
    decision = Admission().offer(asked, FREE, 0)
    assert isinstance(decision, Refuse)
    assert (decision.reason, decision.retry_after) == ("no_worker", 60)
    assert "u0 cannot make output match a grammar of kind regex" in decision.message
    assert isinstance(Admission().offer(asked, snapshot(grammars=("regex",)), 0), Admit)
    queue = Admission()
    queue.offer(asked, FleetSnapshot(), 0)
    queue.offer(ticket("b"), FleetSnapshot(), 0)
    assert queue.next(FREE, 0) == ["b"]


@pytest.mark.parametrize("limits", [AdmissionLimits(max_held=3), AdmissionLimits(max_held_tokens=300)])
def test_the_queue_is_bounded(limits):
    queue = held(ticket("a"), ticket("b"), ticket("c"), limits=limits)
    decision = queue.offer(ticket("d"), BUSY, 0)
    assert isinstance(decision, Refuse)
    assert (decision.reason, decision.quota) == (QUEUE_FULL, False)
    assert decision.retry_after == 1


def test_a_deadline_that_cannot_be_met_is_refused_at_once():
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
    for margin, kind in ((0.0005, Hold), (-0.0005, Refuse)):
        tickets = [
            ticket(str(i), tenant, tokens, priority=priority, deadline=0)
            for i, (tenant, priority, tokens) in enumerate(waiting)
        ]
        queue = held(*tickets)
        deadline = (before + 100) / 1000 + margin
        assert isinstance(queue.offer(ticket("x", deadline=deadline), BUSY, 0), kind), margin


def test_the_wait_estimate_knows_what_the_others_were_served():
    """A tenant that was served more than this one waits behind it."""
    for served, kind in ((0, Refuse), (5000, Hold)):
        queue = Admission()
        queue.offer(ticket("started", "other", 100), FREE, 0)
        queue.offer(ticket("mine", "t", 100), FREE, 0)
        for id in ("a", "b"):
            assert isinstance(queue.offer(ticket(id, "t", 200, deadline=0), UNMEASURED, 0), Hold)
        assert isinstance(queue.offer(ticket("c", "other", 300), BUSY, 0), Hold)
        queue.progress("started", served // 2)
        decision = queue.offer(ticket("x", deadline=0.65, tokens=100), BUSY, 0)
        assert isinstance(decision, kind), served


def test_the_wait_estimate_knows_what_its_own_tenant_was_served():
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
    assert isinstance(decision, Refuse)
    assert decision.reason == reason
    assert said in decision.message
    assert decision.retry_after == pytest.approx(retry_after)
