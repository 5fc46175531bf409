"""What workers are told when a sequence migrates from one to another, and whom its relay hears meanwhile."""

import pytest
from msgspec.structs import replace
from relay_script import Scripted

from legato_gateway.relay.lifecycle import Stage
from legato_gateway.testing.fake_engine import token_at
from legato_protocol.stream import Cancel, Decode, Failed, Handoff, Split, TokenItem, Tokens


@pytest.mark.parametrize("unlinked", ["source", "target", None])
def test_sequences_migrate_between_workers_with_a_link_alone(lab, unlinked):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.decoding(generation)
    (target,) = run.others(source)
    if unlinked:
        run.greet((source if unlinked == "source" else target).name, address=b"")
    run.drain(source)
    run.load(source)
    if unlinked:
        assert not run.told(Handoff)
        return
    ((_, handoff),), ((_, decode),) = run.told(Handoff), run.told(Decode)
    assert handoff == Handoff(decode.id, 2, decode.room, run.peer(target.name))
    assert decode.source == run.peer(source.name)
    view = run.view(target.name)
    assert (view.pending_tokens, view.pending_blocks) == (0, 7), "it computes nothing of it"


@pytest.mark.parametrize(("network", "told"), [("ucx:rdma+cuda", 1), ("ucx:tcp", 0)])
def test_sequences_migrate_to_workers_of_their_network_alone(lab, network, told):
    run = Scripted(lab, "u", "u")
    source = run.decoding(run.start())
    (target,) = run.others(source)
    run.greet(source.name, transport="ucx:rdma")
    run.greet(target.name, transport=network)
    run.drain(source)
    run.load(source)
    assert len(run.told(Handoff)) == told


def test_sequences_migrate_to_workers_of_their_kv_revision_alone(lab):
    """Also a choice that has no output yet, though another worker is idle."""
    run = Scripted(lab, "u", "u", "u")
    generation = run.start(choices=2)
    sub = run.sub(generation)
    source = run.workers[sub.place.decode]
    idle, busy = run.others(source)
    run.greet(idle.name, kv_revision="other")
    run.relay.workers.received(busy.name, replace(busy.load(), running=50))
    run.relay.workers.received(source.name, Tokens((TokenItem(sub.id, 1, 0, 0, (token_at(7, 0, 0),)),)))
    run.drain(source)
    run.load(source)
    assert [name for name, _ in run.told(Decode)] == [busy.name, busy.name]


def test_choices_get_names_of_their_own_before_they_migrate(lab):
    run = Scripted(lab, "u", "u")
    generation = run.start(choices=2)
    source = run.decoding(generation)
    assert run.sub(generation).choices == (0, 1), "while their worker stays they stay together"
    id = run.sub(generation).id
    run.drain(source)
    run.load(source)
    names = {0: f"{id}/0", 1: f"{id}/1"}
    assert run.told(Split) == [(source.name, Split(id, 1, names))]
    assert {frame.id for _, frame in run.told(Handoff)} == set(names.values())
    run.until(lambda: len(run.reports()) == 2)
    assert [set(handoff) > {"source", "target"} for handoff in generation.route.handoffs] == [True, True]


@pytest.mark.parametrize(
    ("sender", "attempt", "heard", "commits"),
    [("source", 1, True, False), ("source", 2, False, False), ("target", 1, False, False), ("target", 2, True, True)],
)
def test_while_a_sequence_migrates_both_workers_are_heard_under_their_own_attempts(
    lab, sender, attempt, heard, commits
):
    run = Scripted(lab, "u", "u")
    generation = run.start()
    source = run.draining(generation)
    sub, known = run.sub(generation), generation.completion_tokens
    target = sub.target.decode
    item = TokenItem(sub.id, attempt, 0, known, (token_at(7, 0, known),))
    run.relay.workers.received(source.name if sender == "source" else target, Tokens((item,)))
    assert generation.completion_tokens == known + heard
    assert (sub.stage is Stage.DECODING) is commits
    assert sub.place.decode == (target if commits else source.name)


def test_the_target_of_a_failed_migration_is_cancelled_and_no_other(lab):
    run = Scripted(lab, "u", "u", first_migration_delay=5.0)
    generation = run.start()
    run.draining(generation)
    sub = run.sub(generation)
    target = sub.target.decode
    run.relay.workers.received(target, Failed(sub.id, 2, "transfer", "scripted", "transfer", True))
    assert run.told(Cancel) == [(target, Cancel(sub.id, 2))]
