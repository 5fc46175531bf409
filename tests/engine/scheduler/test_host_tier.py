"""Evicted blocks go to the host, are found there, and come back before a step reads them; hand-offs wait for moves."""

import pytest
from scheduled_worker import Client, Worker, ask, prompt

from legato_engine.kvcache.block_pool import BlockPool, TierSizes
from legato_engine.kvcache.disk_tier import ReadBlock
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.moves import Restore, Save
from legato_engine.kvcache.prefix_cache import CachedPrefix
from legato_engine.kvcache.sequence_sizes import SequenceSizes
from legato_engine.scheduler.handoff.transfers import IncomingState
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_protocol.wire.load import PrefillCoefficients

OURS, OTHER = prompt(16), prompt(28, 100)


def served(worker, tokens, **fields):
    client = Client(tokens, max_tokens=1, windows=worker.scheduler.limits.windows, **fields)
    request = worker.add(client)
    worker.run(client)
    return request


def evicted(host_slots=32, **limits):
    """A worker of 8 blocks that has computed OURS, and then needed all blocks for OTHER."""
    worker = Worker(num_blocks=8, host_slots=host_slots, **limits)
    served(worker, OURS)
    served(worker, OTHER)
    return worker


@pytest.mark.parametrize(("host_slots", "cached"), [(0, 0), (1, 4), (2, 8), (32, 12)])
def test_a_prefix_that_was_evicted_is_restored_as_far_as_the_host_kept_it(host_slots, cached):
    """The leaves of a sequence, which are evicted first, are also the first that the host drops."""
    assert served(evicted(host_slots), OURS).cached_tokens == cached


def test_a_block_that_was_restored_is_evicted_again_without_a_move():
    worker = evicted()
    for tokens in (OURS, OTHER, OURS, OTHER):
        served(worker, tokens)
    worker.batches.clear()
    served(worker, OURS)
    moves = [move for batch in worker.batches for move in batch.moves]
    assert any(isinstance(move, Restore) for move in moves)
    assert not any(isinstance(move, Save) for move in moves)


def test_another_salt_finds_nothing():
    worker = evicted()
    client = ask(16, max_tokens=1)
    request = worker.add(client, cache_salt="theirs")
    worker.run(client)
    assert request.cached_tokens == 0


def test_blocks_of_a_sequence_with_a_fault_are_not_restored():
    worker = evicted()
    request = worker.add(ask(16, max_tokens=4))
    worker.step()
    assert request.cached_tokens == 12
    assert worker.break_down().faulted
    served(worker, OTHER)
    assert served(worker, OURS).cached_tokens == 0


def test_a_prefill_pushes_restored_blocks_only_after_the_step_that_moves_them():
    worker = evicted()
    request = worker.add(ask(16), room=1)
    worker.grant(request)
    worker.begin()
    assert (request.computed, request.full_blocks(4)) == (12, 0)
    worker.end()
    assert request.full_blocks(4) == 4


def test_a_sequence_without_a_row_in_the_step_that_moves_its_blocks_is_not_handed_over_before():
    tables = BlockTables(BlockPool(2, EventLog("epoch"), tiers=TierSizes(4)), SequenceSizes(4), "revision")
    first, second = ask(8).request(), ask(8, 100).request()
    tables.open(first, CachedPrefix([], 0), 2)
    first.computed = 8
    tables.store(first)
    tables.release(first)
    tables.open(second, CachedPrefix([], 0), 2)
    assert tables.in_flight(second)
    assert len(tables.launch([])) == 2
    assert tables.in_flight(second)
    third = ask(4, 200).request()
    tables.release(second)
    tables.open(third, CachedPrefix([], 0), 1)
    assert tables.in_flight(third), "its block, which plans no move itself, may be one that the step saves"
    tables.end_step()
    assert [tables.in_flight(second), tables.in_flight(third)] == [False, False]


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_peer_may_write_to_blocks_only_after_their_content_was_saved(in_flight):
    """Also to blocks that are planned for no move themselves, while a step with moves is in flight."""
    worker = evicted(max_running=4)
    if in_flight:
        worker.add(ask(16, max_tokens=1))
        assert worker.begin().moves
    client = ask(9, 500)
    transfer = worker.reserve(client)
    assert worker.incoming.grants() == ()
    assert transfer.state is (IncomingState.ALLOCATED if not in_flight else transfer.state)
    if in_flight:
        worker.end()
    while worker.begin() is not None:  # without rows, a step only moves blocks
        worker.end()
    assert worker.incoming.grants() == (transfer,)


def test_a_hand_off_skips_blocks_that_the_host_has():
    worker = evicted()
    transfer = worker.reserve(ask(17))
    assert worker.incoming.grants() == ()
    worker.step()
    assert worker.incoming.grants() == (transfer,)
    assert transfer.cached == 4
    assert [slot for block in transfer.blocks[:4] for slot in worker.arena.blocks[block]] == worker.arena.read(
        transfer.blocks, 16
    )


def test_a_preempted_sequence_is_restored_instead_of_computed_again():
    worker = Worker(num_blocks=10, host_slots=32, growth_tokens=0, max_length=40)
    clients = [ask(12, start, max_tokens=16) for start in (0, 100)]
    requests = worker.add_all(clients)
    worker.run(*clients)
    assert sum(request.preempted for request in requests)
    assert worker.pool.host.counts().restored


def test_counts_are_those_of_the_moves():
    worker = evicted(host_slots=3)
    served(worker, OURS)
    moves = [move for batch in worker.batches for move in batch.moves]
    counts = worker.pool.host.counts()
    assert (counts.slots, counts.blocks) == (3, 3)
    assert counts.saved == sum(isinstance(move, Save) for move in moves)
    assert counts.restored == sum(isinstance(move, Restore) for move in moves)
    assert counts.evicted > 0


def in_files(**limits):
    """A worker whose host holds few blocks, and that has OURS in files only."""
    worker = evicted(host_slots=8, files=64, **limits)
    worker.serve_disk()
    for start in (200, 300):
        served(worker, prompt(28, start))
        worker.serve_disk()
    assert not any(map(worker.pool.host.has, [0] * 3, worker.scheduler._tables.hashes(ask(16).request(), 3)))
    return worker


def test_beginnings_of_sequences_are_written_before_their_ends():
    worker = evicted(files=64)
    written = [order.content for order in worker.pool.disk.take_orders()]
    assert [content.parent for content in written][:2] == [None, written[0].block_hash]


@pytest.mark.parametrize(
    ("files", "read", "usable"),
    [
        (3, False, (0, 0, 3)),
        (6, False, (0, 0, 6)),
        (9, False, (0, 2, 7)),
        (14, False, (0, 7, 7)),
        (14, True, (7, 5, 2)),
    ],
)
def test_files_lose_the_ends_of_sequences_first_those_not_used_for_longest(files, read, usable):
    """OTHER and two further sequences of seven blocks were evicted."""
    worker = evicted(host_slots=8, files=files)
    worker.serve_disk()
    for start in (200, 300, *[100] * read, 400):
        worker.add(client := ask(28, start, max_tokens=1))
        worker.step()
        worker.serve_disk()
        worker.run(client)
        worker.serve_disk()
    disk, tables = worker.pool.disk, worker.scheduler._tables
    chains = [tables.hashes(ask(28, start).request(), 7) for start in (100, 200, 300)]
    kept = [[disk.has(0, each) for each in chain] for chain in chains]
    assert tuple(map(sum, kept)) == usable
    assert all(chain == sorted(chain, reverse=True) for chain in kept), "a sequence lacks an earlier block"


def test_a_request_waits_for_blocks_in_files_while_others_start():
    worker = in_files(max_running=4)
    request, other = worker.add(ask(16, max_tokens=1)), worker.add(ask(3, 900))
    worker.step()
    assert (request.computed, other.computed) == (0, 3)
    worker.serve_disk()
    worker.step()
    assert request.cached_tokens == 12


@pytest.mark.parametrize("fault", ["", "it is damaged"])
def test_requests_share_the_reads_of_their_blocks(fault):
    worker = in_files(max_running=4)
    before = worker.pool.host.counts().evicted
    clients = [ask(16, max_tokens=1) for _ in range(3)]
    requests = worker.add_all(clients)
    assert worker.begin() is None
    reads = [order for order in worker.pool.disk._orders if isinstance(order, ReadBlock)]
    assert (len(reads), worker.pool.host.counts().evicted - before) == (3, 3)
    worker.serve_disk(fault=fault)
    worker.run(*clients)
    assert requests[0].cached_tokens == (0 if fault else 12)


@pytest.mark.parametrize("fault", ["", "it is damaged"])
def test_a_request_starts_without_blocks_that_come_too_late_or_never(fault):
    worker = in_files()
    request = worker.add(client := ask(16, max_tokens=1))
    assert worker.begin() is None
    if fault:
        worker.serve_disk(fault=fault)
    for _ in range(0 if fault else 4):
        assert worker.begin() is None
    worker.run(client)
    assert request.cached_tokens == 0
    worker.serve_disk()
    worker.check()
    assert bool(worker.pool.disk.counts().errors) == bool(fault)


def test_blocks_that_take_longer_to_read_than_to_compute_are_computed(monkeypatch):
    worker = in_files()
    cost = PrefillCoefficients(0.0, 0.1, 0.0, chunk_tokens=16)
    monkeypatch.setattr(worker.scheduler._cost, "prefill", lambda chunk_tokens: cost)
    worker.pool.disk.seconds_per_read = 1e6
    assert served(worker, OURS).cached_tokens == 0
    assert worker.pool.disk.seconds_per_read < 1e6, "some day it is tried again"
