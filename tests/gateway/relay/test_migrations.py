"""Sequences leave draining workers, in virtual time: when, to which others, and which worker is heard meanwhile."""

import pytest
from msgspec.structs import replace
from relay_script import count, started

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.testing.fake_engine import ScriptedRefusal
from legato_protocol.wire.stream import Cancel, Decode, Failed, Handoff, HandoffReport, Split


def _decoding(lab, *roles, greets=(), choices=1, **policy):
    """A sequence that a worker decodes, and another worker, after these changes to (source, target)."""
    run, generation, sub = started(lab, *(roles or ("u", "u")), request={"choices": choices}, **policy)
    source = run.decoding(generation)
    target = run.others(source)[-1]
    for worker, changes in zip((source, target), greets, strict=False):
        run.greet(worker.name, **changes)
    return run, generation, sub, source, target


def _migrating(lab, *roles, **policy):
    run, generation, sub, source, _ = _decoding(lab, *roles, **policy)
    run.drain(source)
    return run, generation, sub, source, run.workers[sub.target.decode]


RDMA, TCP = {"transport": "ucx:rdma"}, {"transport": "ucx:tcp"}


@pytest.mark.parametrize(
    ("greets", "migrates"),
    [
        ((), True),
        (({"address": b""},), False),
        (({}, {"address": b""}), False),
        ((RDMA, {"transport": "ucx:rdma+cuda"}), True),
        ((RDMA, TCP), False),
        (({}, {"kv_revision": "other"}), False),
    ],
)
def test_sequences_migrate_to_workers_with_a_link_of_their_network_and_kv_revision(lab, greets, migrates):
    run, _, _, source, target = _decoding(lab, greets=greets)
    run.drain(source)
    if not migrates:
        assert not run.frames(Handoff)
        return
    ((_, handoff),), ((_, decode),) = run.frames(Handoff), run.frames(Decode)
    assert handoff == Handoff(decode.id, 2, decode.room, run.peer(target.name))
    assert decode.source == run.peer(source.name)
    view = run.view(target.name)
    assert (view.pending_tokens, view.pending_blocks) == (0, 7), "it computes nothing of it"


def test_a_choice_without_output_migrates_to_workers_of_its_kv_revision_too(lab):
    run, _, sub = started(lab, "u", "u", "u", request={"choices": 2})
    source = run.workers[sub.place.decode]
    idle, busy = run.others(source)
    run.greet(idle.name, kv_revision="other")
    run.relay.workers.received(busy.name, replace(busy.load(), running=50))
    run.token(sub)
    run.drain(source)
    assert [name for name, _ in run.frames(Decode)] == [busy.name, busy.name]


def test_choices_get_names_of_their_own_before_they_migrate(lab):
    run, generation, sub, source, _ = _decoding(lab, choices=2)
    assert run.sub(generation).choices == (0, 1), "while their worker stays they stay together"
    run.drain(source)
    names = {0: f"{sub.id}/0", 1: f"{sub.id}/1"}
    assert run.frames(Split) == [(source.name, Split(sub.id, 1, names))]
    assert {frame.id for _, frame in run.frames(Handoff)} == set(names.values())
    run.until(lambda: len(run.reports()) == 2)
    assert [set(handoff) > {"source", "target"} for handoff in generation.route.handoffs] == [True, True]


@pytest.mark.parametrize(
    ("sender", "attempt", "heard", "commits"),
    [("source", 1, True, False), ("source", 2, False, False), ("target", 1, False, False), ("target", 2, True, True)],
)
def test_while_a_sequence_migrates_both_workers_are_heard_under_their_own_attempts(
    lab, sender, attempt, heard, commits
):
    run, generation, sub, source, target = _migrating(lab)
    known = generation.completion_tokens
    run.token(sub, source.name if sender == "source" else target.name, index=known, attempt=attempt)
    assert generation.completion_tokens == known + heard
    assert (sub.stage is Stage.DECODING) is commits
    assert sub.place.decode == (target if commits else source).name


def test_a_committed_hand_off_moves_its_sequence_and_is_recorded(lab):
    def counts():
        return count("migrations_total", reason="draining"), count("handoff_seconds_count")

    run, generation, sub, source, target = _migrating(lab)
    migrations, handoffs = counts()
    for attempt, stage in ((1, Stage.MIGRATING), (2, Stage.DECODING)):
        report = HandoffReport(sub.id, attempt, 1, source.name, 7, 0, 7000, 0.2, 0.1, "memory")
        run.relay.workers.received(target.name, report)
        assert sub.stage is stage
    assert (sub.place.decode, sub.place.attempt) == (target.name, 2)
    assert (generation.route.decode, generation.route.attempt) == (target.name, 2)
    assert [handoff["target"] for handoff in generation.route.handoffs] == [target.name] * 2
    assert counts() == (migrations + 1, handoffs + 2)


def test_the_target_of_a_failed_migration_is_cancelled_and_no_other(lab):
    run, _, sub, _, target = _migrating(lab, first_migration_delay=5.0)
    run.fail(sub, "transfer", target.name)
    assert run.frames(Cancel) == [(target.name, Cancel(sub.id, 2))]


def test_after_a_failed_migration_there_is_a_pause(lab):
    run, _, sub, source, target = _decoding(lab, first_migration_delay=0.5, max_migrations=3)
    target.engine.refusals.extend([ScriptedRefusal("transfer", retry=True)] * 3)
    run.drain(source)
    assert sub.stage is Stage.MIGRATING
    times = [run.time.now]
    for tries in (2, 3):
        run.until(lambda: sub.stage is Stage.DECODING)
        while len(run.frames(Handoff)) < tries:
            run.load(target)
            run.run()
        times.append(run.time.now)
    run.until(lambda: sub.stage is Stage.DECODING)
    for _ in range(300):
        run.load(target)
    assert len(run.frames(Handoff)) == 3, "then it stays"
    assert 0.5 <= times[1] - times[0] < 0.6
    assert 1.0 <= times[2] - times[1] < 1.1


def test_a_migration_that_succeeds_begins_the_count_of_failed_ones_anew(lab):
    run, _, sub, source, target = _decoding(lab, max_migrations=2)
    for leaves, takes in ((source, target), (target, source)):
        takes.engine.refusals.append(ScriptedRefusal("transfer", retry=True))
        run.stay(takes)
        run.drain(leaves)
        run.until(lambda takes=takes: sub.place.decode == takes.name)


def test_a_worker_that_stays_after_all_keeps_its_sequences_and_takes_new_ones(lab):
    run, _, sub, source, target = _decoding(lab)
    run.cut(target)
    run.drain(source)
    new = run.sub(run.start())
    assert new.stage is Stage.PENDING
    run.stay(source)
    assert new.place.decode == source.name
    run.connect()
    run.load(target)
    assert sub.stage is Stage.DECODING
    assert not run.frames(Handoff)


def test_the_drain_of_a_worker_that_only_prefilled_it_leaves_a_request_alone(lab):
    run, _, sub, _, _ = _decoding(lab, "p", "d", "d", choices=2)
    run.drain(run.workers["p0"])
    assert sub.choices == (0, 1)
    assert not run.frames(Handoff)


def test_a_worker_that_did_not_hear_of_the_commit_stops(lab):
    """The commit was lost on its way to the source, which takes the migration for failed and decodes on."""
    run, _, sub, source, target = _migrating(lab)
    run.run(3)
    assert sub.place.decode == target.name
    run.sent.clear()
    run.fail(sub, "peer_lost", source.name, "transfer")
    assert run.sent == [(source.name, Cancel(sub.id, sub.attempt))]
    assert sub.stage is Stage.DECODING


def test_after_a_split_frames_under_the_old_id_mean_its_parts(lab):
    run, generation, sub, source, target = _decoding(lab, choices=2)
    run.cut(target)
    run.drain(source)
    parts = run.relay.sub_requests(generation)
    assert [(part.stage, part.choices) for part in parts] == [(Stage.DECODING, (0,)), (Stage.DECODING, (1,))]
    first, second = (len(choice.tokens) for choice in generation.choices)
    run.token(sub, source.name, 1, second, attempt=1)
    assert [len(choice.tokens) for choice in generation.choices] == [first, second + 1]
    run.relay.workers.received(source.name, Failed(sub.id, 1, "internal", "scripted", "decode", True))
    assert [part.stage for part in parts] == [Stage.WAITING, Stage.WAITING]
