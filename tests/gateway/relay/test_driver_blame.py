"""Failures in virtual time: which worker or request is blamed for one, and what is forgiven."""

import pytest
from relay_script import Scripted, error_of

from legato_gateway.errors import NotComputable, SuspectedPoison
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.testing.fake_engine import Refusal
from legato_protocol.stream import Cancel, Failed, Generate, TokenItem, Tokens


@pytest.mark.parametrize(("code", "avoided"), [("peer_lost", "p"), ("transfer", "d"), ("overloaded", "d")])
def test_for_a_lost_peer_the_other_worker_is_avoided(lab, code, avoided):
    run = Scripted(lab, "p", "p", "d", "d")
    generation = run.start()
    sub = run.sub(generation)
    place = sub.place
    run.relay.workers.received(place.decode, Failed(sub.id, sub.attempt, code, "scripted", "transfer", True))
    assert sub.avoid == {place.prefill if avoided == "p" else place.decode}
    assert sub.avoid.isdisjoint(sub.place.workers)
    assert sub.attempt == 2


def test_a_new_epoch_ends_what_ran_in_the_old_one(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start(max_tokens=30)
    worker = run.decoding(generation)
    before = run.sub(generation).attempt
    run.replace(worker)
    assert run.sub(generation).attempt == before + 1, "the worker is new and knows nothing of it"
    run.run(60)
    assert error_of(generation) is None
    assert run.texts[generation, 0] == lab.text_of(7, 30)


def test_two_new_epochs_are_two_deaths(lab):
    run = Scripted(lab, "u", poison_deaths=2)
    generation = run.start()
    for _ in range(2):
        run.replace(run.decoding(generation))
    assert isinstance(error_of(generation), SuspectedPoison)
    assert len(run.told(Generate)) == 2


def test_the_same_epoch_greets_again_and_ends_nothing(lab):
    run = Scripted(lab, "u")
    generation = run.start()
    worker = run.decoding(generation)
    run.relay.workers.greeted(worker.name, worker.hello())
    assert run.sub(generation).attempt == 1


def test_reconnecting_forgives_what_looked_like_a_death(lab):
    run = Scripted(lab, "u", "u", poison_deaths=2)
    generation = run.start(max_tokens=30)
    left = []
    for _ in range(4):
        worker = run.decoding(generation)
        left.append(worker.name)
        run.cut(worker)
        run.connect()
    assert left[0] != left[1], "it would be one process that went away, however often"
    assert {name for name, _ in generation.deaths} == set(left)
    run.run(60)
    assert error_of(generation) is None
    assert run.texts[generation, 0] == lab.text_of(7, 30)


def test_two_deaths_of_different_processes_are_not_forgiven(lab):
    run = Scripted(lab, "u", "u", poison_deaths=2)
    generation = run.start()
    for _ in range(2):
        run.kill(run.decoding(generation))
    assert isinstance(error_of(generation), SuspectedPoison)


def test_a_request_whose_logits_are_not_finite_twice_is_refused_and_no_worker_is_blamed(lab):
    run = Scripted(lab, "u", "u", "u")
    for _ in range(5):
        for worker in run.workers.values():
            worker.engine.refusals.append(Refusal("faulted", retry=True))
        generation = run.start()
        run.until(lambda generation=generation: generation.ended)
        error = error_of(generation)
        assert isinstance(error, NotComputable)
        assert error.permanent
        assert generation.route.attempt == 2
        for worker in run.workers.values():
            worker.engine.refusals.clear()
    assert not any(worker.broken for worker in run.fleet.snapshot().workers)


def test_faults_are_counted_when_the_decode_worker_is_first_to_tell_of_the_end(lab):
    """A prefill that faults aborts its hand-off: the decode worker's word of that may overtake the cause."""
    run = Scripted(lab, "p", "d")
    generation = run.start()
    run.until(lambda: run.sub(generation).place is not None)
    for attempt in (1, 2, 3):
        run.until(lambda attempt=attempt: run.sub(generation).attempt == attempt)
        place, id = run.sub(generation).place, run.sub(generation).id
        run.relay.workers.received(place.decode, Failed(id, attempt, "transfer", "aborted", "transfer", True))
        if attempt < 3:
            late = Failed(id, attempt, "faulted", "not finite", "prefill", True)
            run.relay.workers.received(place.prefill, late)
    assert isinstance(error_of(generation), NotComputable)


def test_a_fault_that_another_worker_does_not_have_is_the_first_ones(lab):
    run = Scripted(lab, "u", "u")
    for _ in range(3):
        run.workers["u0"].engine.refusals.append(Refusal("faulted", retry=True))
    for _ in range(30):
        generation = run.start(max_tokens=1, prompt=(1, 2, 3))
        run.until(lambda generation=generation: generation.ended)
        assert error_of(generation) is None
    assert {worker.name: worker.broken for worker in run.fleet.snapshot().workers} == {"u0": True, "u1": False}


def test_a_fault_that_does_not_come_again_at_the_same_worker_is_nobodys(lab):
    run = Scripted(lab, "u")
    for _ in range(3):
        run.workers["u0"].engine.refusals.append(Refusal("faulted", retry=True))
        generation = run.start(max_tokens=1)
        run.until(lambda generation=generation: generation.ended)
        assert (error_of(generation), generation.route.attempt) == (None, 2)
    assert not run.fleet.snapshot().workers[0].broken


@pytest.mark.parametrize(
    ("code", "requests", "broken"),
    [("internal", 3, True), ("transfer", 3, True), ("internal", 1, False), ("overloaded", 3, False)],
)
def test_a_worker_at_which_several_requests_failed_is_avoided(lab, code, requests, broken):
    """One request that fails three times counts once, and want of a place counts not at all."""
    run = Scripted(lab, "u")
    subs = [run.sub(run.start()) for _ in range(requests)]
    for sub in subs * (3 // requests):
        run.relay.workers.received("u0", Failed(sub.id, sub.attempt, code, "scripted", "decode", True))
        run.time.advance(1.0)
        assert sub.stage is Stage.QUEUED, "there is no other worker"
    assert run.fleet.snapshot().workers[0].broken is broken


@pytest.mark.parametrize(
    ("choice", "index", "message"), [(1, 0, "sent tokens of choice 1"), (0, 7, "left out tokens 0 to 6")]
)
def test_tokens_that_cannot_be_right_end_the_attempt(lab, choice, index, message):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    sub = run.sub(generation)
    worker = sub.place.decode
    run.relay.workers.received(worker, Tokens((TokenItem(sub.id, 1, choice, index, (1,)),)))
    assert sub.last_failure == Failed(sub.id, 1, "internal", f"{worker} {message}", "decode", True)
    assert (sub.attempt, sub.avoid) == (2, {worker})
    assert generation.completion_tokens == 0
    assert (worker, Cancel(sub.id, 1)) in run.sent
