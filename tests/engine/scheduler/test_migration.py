"""Books of both sides while a running sequence migrates."""

import pytest
from scheduled_worker import Worker, ask, outgoing_of

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.requests.request import RequestState


def migrating(length=6, max_tokens=24, steps=1, lag=0):
    """Both workers, a client, and its request after some steps, which `target` has room for. The target reserves the
    tokens that the gateway has seen, `lag` fewer than there are."""
    source, target, client = Worker(), Worker(), ask(length, max_tokens=max_tokens)
    request = source.add(client)
    source.steps(steps)
    known = request.tokens[: len(request.tokens) - lag]
    transfer = target.granted(client, tokens=known, room=5, attempt=2)
    source.migrate(request, len(transfer.blocks))
    return source, target, client, request, transfer


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("steps_before", [1, 3, 4, 5])
@pytest.mark.parametrize("steps_between", [0, 2, 12])
def test_a_running_sequence_migrates(lag, steps_before, steps_between):
    source, target, client, request, transfer = migrating(steps=steps_before, lag=min(lag, steps_before))
    source.steps(steps_between)
    kv = source.finish(request)
    assert source.step() is None
    source.transfer(kv.blocks, target, transfer)
    extra = [Sampled(token) for token in kv.token_ids[len(transfer.request.tokens) :]]
    target.adopt(transfer, kv.computed, {0: extra})
    source.outgoing.commit(outgoing_of(request))
    source.check()
    target.check()
    assert source.idle
    target.run(client)


def test_a_failed_migration_goes_on_at_home():
    source, target, client, request, transfer = migrating(max_tokens=12)
    assert source.finish(request) is not None
    target.incoming.abandon(transfer)
    source.outgoing.abort(outgoing_of(request))
    source.run(client)
    assert source.idle


def test_freezing_waits_for_the_step_in_flight():
    source, _, _, request, _ = migrating(max_tokens=12)
    source.begin()
    assert source.finish(request) is None
    source.end()
    kv = source.finish(request)
    assert (len(kv.token_ids), kv.computed) == (8, 7)


@pytest.mark.parametrize("end", [("withdraw",), ("abort",), ("cancel", "abort"), ("cancel", "commit")])
def test_a_sequence_that_ends_while_it_migrates_keeps_its_blocks_for_that_time(end):
    source, _, client, request, _ = migrating(max_tokens=3)
    source.run(client)
    assert source.counts.used == len(request.blocks) > 0
    assert source.finish(request) is None
    for name in end:
        getattr(source.outgoing, name)(outgoing_of(request))
    source.check()
    assert source.idle


def test_a_migrating_sequence_is_not_preempted():
    source = Worker(num_blocks=8, growth_tokens=0)
    old = ask(6, max_tokens=20)
    _, request = source.add_all((old, ask(8, 50, max_tokens=20)))
    source.step()
    source.migrate(request, 3)
    while source.step():
        assert request.state in (RequestState.RUNNING, RequestState.ENDED)
    source.outgoing.abort(outgoing_of(request))
    source.run(old)


@pytest.mark.parametrize(
    ("steps", "choices", "room"), [(0, (0,), None), (1, (0, 1), None), (1, (0, 1, 2), None), (1, (0,), 9)]
)
def test_only_one_running_sequence_migrates(steps, choices, room):
    """None that waits, that will fork or that is a prefill for a hand-off."""
    worker = Worker(chunk_tokens=4)
    request = worker.add(ask(6, choices=choices), room=room)
    worker.steps(steps)
    with pytest.raises(ValueError, match="can be migrated"):
        worker.outgoing.migrate(request, 5, 2)
    assert not request.sending


def test_a_migrating_sequence_announces_each_block_once():
    source, _, _, request, _ = migrating()
    assert [request.computed for _ in range(10) if source.step().advanced] == [8, 12, 16]


@pytest.mark.parametrize(("length", "steps", "computed"), [(6, 12, 12), (8, 0, 8)])
def test_no_more_is_frozen_than_the_receiver_has_room_for_and_no_block_without_kv(length, steps, computed):
    source, _, _, request, transfer = migrating(length)
    source.steps(steps)
    kv = source.finish(request)
    assert min(len(transfer.blocks), len(request.blocks)) == 3
    assert (kv.computed, kv.blocks) == (computed, tuple(request.blocks[: computed // 4]))
    assert kv.token_ids == tuple(request.tokens)
