"""Single promises of the relay in virtual time: whose news counts, what waits, and for how long."""

import pytest
from relay_script import Scripted, count, error_of

from legato_gateway.admission.ticket import NO_WORKER
from legato_gateway.errors import Overloaded
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.choose import Policy
from legato_gateway.testing.fake_engine import token_at
from legato_protocol.stream import Begun, Cancel, Decode, Failed, TokenItem, Tokens


def test_tokens_of_a_worker_that_does_not_decode_it_are_dropped(lab):
    """Also under the current attempt: the prefill worker of a pair has no say in what the client reads."""
    run = Scripted(lab, "p", "d")
    generation = run.start()
    sub = run.sub(generation)
    for worker, heard in ((sub.place.prefill, False), (sub.place.decode, True)):
        run.relay.workers.received(worker, Tokens((TokenItem(sub.id, sub.attempt, 0, 0, (1,)),)))
        assert (generation.completion_tokens == 1) is heard


def test_many_frames_are_one_turn(lab, monkeypatch):
    run = Scripted(lab, "u", "u", "u")
    offered = []
    monkeypatch.setattr(run.relay._driver, "offer_room", lambda: offered.append(run.time.now))
    run.time.advance(1.0)
    before = len(offered)
    for _ in range(50):
        for worker in run.workers.values():
            run.relay.workers.received(worker.name, worker.load())
    assert len(offered) == before
    run.time.advance(0.0)
    assert len(offered) == before + 1
    for worker in run.workers.values():
        run.relay.workers.received(worker.name, worker.load())
    run.time.advance(0.001)
    assert len(offered) == before + 1, "the next one comes a little later"
    run.time.advance(0.01)
    assert len(offered) == before + 2


def test_what_waits_is_not_tried_again_before_room_opens(lab, monkeypatch):
    """In a full fleet a drained sequence costs next to nothing, however often workers tell how busy they are."""
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.decoding(generation)
    (target,) = set(run.workers.values()) - {source}
    target.blocks, full = 0, run.fleet.worker(target.name)
    run.load(target)
    assert full.load.free_blocks == 0
    looked = []
    dispatcher = run.relay._dispatcher
    look = dispatcher.may_migrate
    monkeypatch.setattr(dispatcher, "may_migrate", lambda sub: looked.append(sub) or look(sub))
    run.drain(source)
    run.load(source)
    assert len(looked) == 1
    for _ in range(20):
        run.load(source)
        run.load(target)
    assert len(looked) == 1
    target.blocks = 1000
    run.load(target)
    assert run.told(Decode)


def test_what_waits_for_its_first_worker_is_not_tried_again_before_room_opens_either(lab, monkeypatch):
    run = Scripted(lab, "u")
    worker = run.workers["u0"]
    generation = run.start()
    worker.blocks = 0
    run.load(worker)
    run.relay.workers.received("u0", Failed(run.sub(generation).id, 1, "overloaded", "scripted", "decode", True))
    for _ in range(3):
        run.load(worker)
    looked = []
    dispatcher = run.relay._dispatcher
    look = dispatcher.may_fit
    monkeypatch.setattr(dispatcher, "may_fit", lambda sub: looked.append(sub) or look(sub))
    for _ in range(20):
        run.load(worker)
    assert looked == []
    assert run.sub(generation).stage is Stage.WAITING
    worker.blocks = 1000
    run.load(worker)
    assert run.sub(generation).stage is Stage.QUEUED


@pytest.mark.parametrize("progress", [False, True])
def test_failures_in_a_row_end_a_request_and_a_token_between_them_forgives(lab, progress):
    run = Scripted(lab, "u", max_failures=2)
    generation, before = run.start(), count("redispatches_total", reason="internal")
    for _ in range(3):
        run.time.advance(1.0)
        if progress:
            run.decoding(generation)
        sub = run.sub(generation)
        run.relay.workers.received("u0", Failed(sub.id, sub.attempt, "internal", "scripted", "decode", True))
    assert generation.ended is not progress
    assert count("redispatches_total", reason="internal") == before + (3 if progress else 2)


def test_after_the_second_failure_in_a_row_there_is_a_pause(lab):
    run = Scripted(lab, "u", first_delay=0.5)
    generation, other = run.start(), run.start()
    for sub in (run.sub(generation), run.sub(other)):
        for stage in (Stage.QUEUED, Stage.BACKING_OFF):
            run.relay.workers.received("u0", Failed(sub.id, sub.attempt, "internal", "scripted", "decode", True))
            assert sub.stage is stage
    run.relay.leave(other)
    run.time.advance(0.4)
    assert run.sub(generation).stage is Stage.BACKING_OFF
    run.time.advance(0.2)
    assert run.sub(generation).stage is Stage.QUEUED
    run.check()


def test_a_tenant_is_charged_for_output_as_workers_tell_their_load_and_at_the_end(lab):
    run = Scripted(lab, "u")
    generation = run.start(tenant="t", max_tokens=10)
    worker = run.decoding(generation)
    run.load(worker)
    assert run.admission._counters["t"] == 100 + 2 * generation.completion_tokens
    run.until(lambda: generation.ended)
    assert run.admission._counters["t"] == 100 + 2 * 10


def test_news_of_an_attempt_that_is_over_or_of_nobody_changes_nothing(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    sub = run.sub(generation)
    first = sub.place.decode
    run.relay.workers.received(first, Failed(sub.id, 1, "overloaded", "scripted", "prefill", True))
    del run.sent[:]
    late = count("late_items_total")
    run.relay.workers.received(first, Begun(sub.id, 1))
    run.relay.workers.received(first, Tokens((TokenItem(sub.id, 1, 0, 0, (1,)),)))
    run.relay.workers.received(first, Failed(sub.id, 1, "internal", "scripted", "prefill", True))
    run.relay.workers.received(first, Failed("nobody", 1, "internal", "?", "decode", True))
    assert (sub.stage, sub.attempt, sub.begun, generation.completion_tokens) == (Stage.QUEUED, 2, set(), 0)
    assert run.sent == [(first, Cancel(sub.id, 2))], "it may not know"
    assert count("late_items_total") == late + 1


def test_a_part_that_nobody_will_take_ends_its_siblings_too(lab):
    """Choice 2 has output, 0 and 1 have none; with nobody to prefill, the first of these ends the request."""
    run = Scripted(lab, "p", "d", "d")
    run.relay._dispatcher._policy = Policy(0, "Fail")
    generation = run.start(choices=3)
    sub = run.sub(generation)
    decoder = run.workers[sub.place.decode]
    run.relay.workers.received(decoder.name, Tokens((TokenItem(sub.id, 1, 2, 0, (token_at(7, 2, 0),)),)))
    assert generation.completion_tokens == 1
    run.kill(run.workers["p0"])
    run.kill(decoder)
    assert isinstance(error_of(generation), Overloaded)
    assert run.relay.waiting == 0
    run.check()


@pytest.mark.parametrize("has_output", [False, True])
def test_what_no_worker_can_ever_take_is_refused_unless_its_client_has_output(lab, has_output):
    """A larger worker may come, and a client that has read something waits for it."""
    run = Scripted(lab, "u")
    generation = run.start(max_tokens=50)
    if has_output:
        run.decoding(generation)
    run.workers["u0"].blocks = 2
    run.replace(run.workers["u0"])
    if has_output:
        assert run.sub(generation).stage is Stage.WAITING
    else:
        error = error_of(generation)
        assert isinstance(error, Overloaded)
        assert error.reason == NO_WORKER
