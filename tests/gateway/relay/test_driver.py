"""Single promises of the relay in virtual time: who is blamed, who is forgiven, what waits and for how long."""

import pytest
from relay_script import Scripted, count, error_of

from legato_gateway.admission.ticket import NO_WORKER
from legato_gateway.errors import NotComputable, Overloaded, SuspectedPoison
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.testing.fake_engine import Refusal, token_at
from legato_protocol.stream import Begun, Cancel, Decode, Failed, Generate, Handoff, TokenItem, Tokens


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


def test_after_a_failed_migration_there_is_a_pause(lab):
    run = Scripted(lab, "u", "u", first_migration_delay=0.5, max_migrations=3)
    generation = run.start()
    source = run.decoding(generation)
    (target,) = set(run.workers.values()) - {source}
    target.engine.refusals.extend([Refusal("transfer", retry=True)] * 3)
    run.drain(source)
    run.load(source)
    assert run.sub(generation).stage is Stage.MIGRATING
    times = [run.time.now]
    for tries in (2, 3):
        run.until(lambda: run.sub(generation).stage is Stage.DECODING)
        while len(run.told(Handoff)) < tries:
            run.load(target)
            run.run()
        times.append(run.time.now)
    run.until(lambda: run.sub(generation).stage is Stage.DECODING)
    for _ in range(300):
        run.load(target)
    assert len(run.told(Handoff)) == 3, "then it stays"
    assert 0.5 <= times[1] - times[0] < 0.6
    assert 1.0 <= times[2] - times[1] < 1.1


def test_a_migration_that_succeeds_begins_the_count_of_failed_ones_anew(lab):
    run = Scripted(lab, "u", "u", max_migrations=2)
    generation = run.start()
    source = run.decoding(generation)
    (target,) = run.others(source)
    for leaves, takes in ((source, target), (target, source)):
        takes.engine.refusals.append(Refusal("transfer", retry=True))
        run.stay(takes)
        run.drain(leaves)
        run.until(lambda takes=takes: run.sub(generation).place.decode == takes.name)


def test_a_worker_that_stays_after_all_keeps_its_sequences(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.decoding(generation)
    (target,) = set(run.workers.values()) - {source}
    run.cut(target)
    run.drain(source)
    run.load(source)
    run.stay(source)
    run.load(source)
    run.connect()
    run.load(target)
    assert run.sub(generation).stage is Stage.DECODING
    assert not run.told(Handoff)


def test_the_drain_of_a_worker_that_only_prefilled_it_leaves_a_request_alone(lab):
    run = Scripted(lab, "p", "d", "d")
    generation = run.start(choices=2)
    run.decoding(generation)
    run.drain(run.workers["p0"])
    run.load(run.workers["p0"])
    assert run.sub(generation).choices == (0, 1)
    assert not run.told(Handoff)


def test_a_sequence_that_starts_on_a_draining_worker_leaves_it(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.workers[run.sub(generation).place.decode]
    source.run()  # it takes the sequence, and refuses others from here on
    run.drain(source)
    run.load(source)
    assert run.sub(generation).stage is Stage.QUEUED
    run.until(lambda: run.told(Handoff))
    run.run(5)
    assert run.sub(generation).place.decode != source.name


def _migrating(run):
    generation = run.start()
    source = run.decoding(generation)
    run.drain(source)
    run.load(source)
    return generation, source, run.workers[run.sub(generation).target.decode]


@pytest.mark.parametrize("committed", [False, True])
def test_what_was_migrating_to_a_lost_worker_is_recomputed(lab, committed):
    """Whether the target had committed died with it; then the source would have nothing to go on with."""
    run = Scripted(lab, "u", "u", "u")
    generation, source, target = _migrating(run)
    if committed:
        source.run()
        target.run()
        assert target.engine.received
        assert not source.engine.jobs
    run.kill(target)
    run.run(2)
    assert run.sub(generation).place.decode not in (source.name, target.name)
    assert run.sub(generation).attempt == 3
    assert not source.engine.jobs


def test_a_worker_that_was_not_told_of_the_commit_stops(lab):
    """The commit was lost on its way to the source, which takes the migration for failed and decodes on."""
    run = Scripted(lab, "u", "u")
    generation, source, target = _migrating(run)
    run.run(3)
    sub = run.sub(generation)
    assert sub.place.decode == target.name
    run.sent.clear()
    run.relay.workers.received(source.name, Failed(sub.id, sub.place.attempt, "peer_lost", "?", "transfer", True))
    assert run.sent == [(source.name, Cancel(sub.id, sub.attempt))]
    assert run.sub(generation).stage is Stage.DECODING


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


def test_after_a_split_frames_under_the_old_id_mean_its_parts(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start(choices=2)
    source = run.decoding(generation)
    run.cut(*run.others(source))
    run.drain(source)
    run.load(source)
    parts = run.relay.sub_requests(generation)
    assert [(part.stage, part.choices) for part in parts] == [(Stage.DECODING, (0,)), (Stage.DECODING, (1,))]
    known = [len(choice.tokens) for choice in generation.choices]
    item = TokenItem(generation.id, 1, 1, known[1], (token_at(7, 1, known[1]),))
    run.relay.workers.received(source.name, Tokens((item,)))
    assert [len(choice.tokens) for choice in generation.choices] == [known[0], known[1] + 1]
    run.relay.workers.received(source.name, Failed(generation.id, 1, "internal", "scripted", "decode", True))
    assert [part.stage for part in parts] == [Stage.WAITING, Stage.WAITING]


def test_a_tenant_is_charged_for_output_as_workers_tell_their_load_and_at_the_end(lab):
    run = Scripted(lab, "u")
    generation = run.start(tenant="t", max_tokens=10)
    worker = run.decoding(generation)
    run.load(worker)
    assert run.admission._counters["t"] == 100 + 2 * generation.completion_tokens
    run.until(lambda: generation.ended)
    assert run.admission._counters["t"] == 100 + 2 * 10


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


def test_news_of_an_attempt_that_is_over_changes_nothing(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    sub = run.sub(generation)
    first = sub.place.decode
    run.relay.workers.received(first, Failed(sub.id, 1, "overloaded", "scripted", "prefill", True))
    del run.sent[:]
    run.relay.workers.received(first, Begun(sub.id, 1))
    run.relay.workers.received(first, Tokens((TokenItem(sub.id, 1, 0, 0, (1,)),)))
    run.relay.workers.received(first, Failed(sub.id, 1, "internal", "scripted", "prefill", True))
    assert (sub.stage, sub.attempt, sub.begun, generation.completion_tokens) == (Stage.QUEUED, 2, set(), 0)
    assert run.sent == [(first, Cancel(sub.id, 2))], "it may not know"


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
