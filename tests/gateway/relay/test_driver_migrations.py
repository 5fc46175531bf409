"""Sequences that leave draining workers, in virtual time: when they go, stay, or are computed anew."""

import pytest
from relay_script import Scripted

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.testing.fake_engine import Refusal, token_at
from legato_protocol.stream import Cancel, Failed, Handoff, TokenItem, Tokens


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


def test_a_worker_that_stays_after_all_keeps_its_sequences_and_takes_new_ones(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.decoding(generation)
    (target,) = set(run.workers.values()) - {source}
    run.cut(target)
    run.drain(source)
    run.load(source)
    new = run.start()
    assert run.sub(new).stage is Stage.HELD
    run.stay(source)
    run.load(source)
    assert run.sub(new).place.decode == source.name
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
    source = run.draining(generation)
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
