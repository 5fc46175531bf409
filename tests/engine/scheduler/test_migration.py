"""Books of both sides while a running sequence migrates."""

import pytest
from scheduled_worker import Worker, ask


def migrating(length=6):
    """A worker with a running sequence, its request, and room for it at another worker."""
    source, target, client = Worker(), Worker(), ask(length, max_tokens=24)
    request = source.add(client)
    source.step()
    transfer = target.granted(client, tokens=request.tokens[:], room=5, attempt=2)
    source.migrate(request, len(transfer.blocks))
    return source, request, transfer


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
    source, request, _ = migrating()
    assert [request.computed for _ in range(10) if source.step().advanced] == [8, 12, 16]


@pytest.mark.parametrize(("length", "steps", "computed"), [(6, 12, 12), (8, 0, 8)])
def test_no_more_is_frozen_than_the_receiver_has_room_for_and_no_block_without_kv(length, steps, computed):
    source, request, transfer = migrating(length)
    source.steps(steps)
    kv = source.finish(request)
    assert min(len(transfer.blocks), len(request.blocks)) == 3
    assert (kv.computed, kv.blocks) == (computed, tuple(request.blocks[: computed // 4]))
    assert kv.token_ids == tuple(request.tokens)


@pytest.mark.parametrize("granted", [False, True])
def test_a_preempted_sequence_that_migrates_finds_room_for_its_windows_again(granted):
    """Its worker has room for one such sequence, and its cache is empty."""
    worker = Worker(num_blocks=36, max_length=110, windows=(20,), chunk_tokens=8)
    request = worker.add(client := ask(60, windows=(20,), max_tokens=50))
    while request.outputs < 40:
        worker.step()
    transfer = worker.outgoing.migrate(request, room=5, attempt=2)
    worker.scheduler._registry.preempt(request)
    worker.pool.release(worker.pool.allocate(36))
    worker.steps(2)
    if not granted:
        worker.run(client)
        return
    worker.outgoing.grant(transfer, 30, (19,))
    while worker.outgoing.is_behind(transfer):
        assert worker.step()
    assert worker.finish(request).windows[0].first == 19
