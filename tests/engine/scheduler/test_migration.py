"""Books of both sides while a running sequence migrates."""

import pytest

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.request import RequestState


def prompt(length, start=0):
    return tuple(range(start, start + length))


def begin_migration(source, target, client, lag=0):
    """`target` reserves what the gateway has seen, `lag` tokens less than there are."""
    request = source.scheduler.requests(client.id)[0]
    known = request.tokens[: len(request.tokens) - lag]
    target.clients[client.id] = client
    transfer = target.reserve(client.request(tokens=known, room=5, attempt=2), target.now)
    assert target.scheduler.incoming.grants() == (transfer,)
    source.migrate(request, len(transfer.blocks))
    return request, transfer


def finish_migration(source, target, request, transfer, kv):
    source.transfer(kv.blocks, target, transfer)
    extra = [Sampled(token) for token in kv.token_ids[len(transfer.request.tokens) :]]
    target.deliver(target.scheduler.incoming.adopt(transfer, kv.computed, {0: extra}))
    source.commit(request)
    source.check()
    target.check()


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("steps_before", [1, 3, 4, 5])
@pytest.mark.parametrize("steps_between", [0, 2, 12])
def test_a_running_sequence_migrates(make_worker, make_client, lag, steps_before, steps_between):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=24)
    source.add(client)
    for _ in range(steps_before):
        source.step()
    request, transfer = begin_migration(source, target, client, min(lag, steps_before))
    for _ in range(steps_between):
        source.step()
    kv = source.finish(request)
    assert kv is not None
    assert source.step() is None
    finish_migration(source, target, request, transfer, kv)
    assert source.scheduler.idle
    target.run()
    assert client.complete


def test_a_failed_migration_goes_on_at_home(make_worker, make_client):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=12)
    source.add(client)
    source.step()
    request, transfer = begin_migration(source, target, client)
    assert source.finish(request) is not None
    target.scheduler.incoming.abandon(transfer)
    source.abort(request)
    source.run()
    assert client.complete
    assert source.scheduler.idle


def test_freezing_waits_for_the_step_in_flight(make_worker, make_client):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=12)
    source.add(client)
    source.step()
    request, _ = begin_migration(source, target, client)
    source.begin()
    assert source.finish(request) is None
    source.end()
    kv = source.finish(request)
    assert kv is not None
    assert (len(kv.token_ids), kv.computed) == (8, 7)


@pytest.mark.parametrize("end", [("withdraw",), ("abort",), ("cancel", "abort"), ("cancel", "commit")])
def test_a_sequence_that_ends_while_it_migrates_keeps_its_blocks_so_long(make_worker, make_client, end):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=3)
    source.add(client)
    source.step()
    request, _ = begin_migration(source, target, client)
    source.run()
    assert client.complete
    assert source.pool.counts().used == len(request.blocks) > 0
    assert source.finish(request) is None
    for name in end:
        getattr(source.scheduler.outgoing, name)(request.outgoing)
    source.check()
    assert source.scheduler.idle


def test_a_migrating_sequence_is_not_preempted(make_worker, make_client):
    source, target = make_worker(num_blocks=8, growth_tokens=0), make_worker()
    old, young = make_client(prompt(6), max_tokens=20), make_client(prompt(8, 50), max_tokens=20)
    source.add(old)
    source.add(young)
    source.step()
    request, _ = begin_migration(source, target, young)
    while source.step():
        assert request.state in (RequestState.RUNNING, RequestState.ENDED)
    source.abort(request)
    source.run()
    assert old.complete


@pytest.mark.parametrize(
    ("steps", "choices", "room"), [(0, (0,), None), (1, (0, 1), None), (1, (0, 1, 2), None), (1, (0,), 9)]
)
def test_only_one_running_sequence_migrates(make_worker, make_client, steps, choices, room):
    """None that waits, that will fork or that is a prefill for a hand-off."""
    worker = make_worker(chunk_tokens=4)
    request = worker.add(make_client(prompt(6), choices=choices), room=room)
    for _ in range(steps):
        worker.step()
    with pytest.raises(ValueError, match="can be migrated"):
        worker.scheduler.outgoing.migrate(request, 5, 2)
    assert not request.sending


def test_a_migrating_sequence_tells_of_each_block_once(make_worker, make_client):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=24)
    source.add(client)
    source.step()
    request, _ = begin_migration(source, target, client)
    told = [request.computed for _ in range(10) if source.step().advanced]
    assert told == [8, 12, 16]


def test_no_more_is_frozen_than_the_receiver_has_room_for(make_worker, make_client):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=24)
    source.add(client)
    source.step()
    request, transfer = begin_migration(source, target, client)
    for _ in range(12):
        source.step()
    kv = source.finish(request)
    assert len(transfer.blocks) == 3
    assert (kv.computed, kv.blocks) == (12, tuple(request.blocks[:3]))
    assert kv.token_ids == tuple(request.tokens)


def test_no_block_is_frozen_that_holds_nothing_yet(make_worker, make_client):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(8), max_tokens=24)
    source.add(client)
    source.step()
    request, _ = begin_migration(source, target, client)
    assert len(request.blocks) == 3
    kv = source.finish(request)
    assert (kv.computed, kv.blocks) == (8, tuple(request.blocks[:2]))
