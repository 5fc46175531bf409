"""Block tables: blocks of a step in flight, and copies on write."""

import pytest
from scheduled_worker import Client, ask

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.kvcache.prefix_cache import CachedPrefix
from legato_engine.kvcache.sequence_sizes import SequenceSizes
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_protocol.wire.block_hash import chain, root
from legato_protocol.wire.packed_tokens import pack_tokens

NOTHING = CachedPrefix([], 0)


@pytest.fixture
def tables():
    return BlockTables(BlockPool(8, EventLog("epoch")), SequenceSizes(4), kv_revision="revision")


def forked(tables, branches):
    """Sequences of 6 computed tokens on the same two blocks, the last one half full."""
    request = ask(6).request()
    tables.open(request, NOTHING, 2)
    request.computed = 6
    tables.store(request)
    others = []
    for choice in range(1, branches):
        tables.pool.take(request.blocks)
        others.append(request.fork(choice, request.blocks))
    return [request, *others]


def test_all_but_the_last_writer_copy(tables):
    requests = forked(tables, 3)
    shared = requests[0].blocks[1]
    tables.begin_step()
    assert not tables.is_exclusive(requests[0])
    assert [tables.grow(request, 7) for request in requests] == [0, 0, 0]
    assert tables.is_exclusive(requests[0])
    assert [source for source, _ in tables.copies] == [shared, shared]
    assert requests[2].blocks[1] == shared
    assert [len(set(blocks)) for blocks in zip(*(request.blocks for request in requests), strict=True)] == [1, 3]
    tables.check_integrity([request.blocks for request in requests])
    tables.launch([])
    tables.end_step()
    tables.check_integrity([request.blocks for request in requests])


def test_a_copied_block_is_not_reused_before_the_step_was_processed(tables):
    first, second = forked(tables, 2)
    shared = first.blocks[1]
    tables.begin_step()
    tables.grow(first, 7)
    tables.release(second)
    assert tables.pool.references(shared) == 1
    tables.launch([])
    tables.end_step()
    assert tables.pool.references(shared) == 0


def test_fresh_blocks_lie_behind_those_of_the_table_where_they_can(tables):
    first, second, other = (ask(4).request() for _ in range(3))
    tables.open(first, NOTHING, 1)
    tables.open(other, NOTHING, 4)
    tables.release(other)
    assert tables.grow(first, 8) == 0
    assert first.blocks == [0, 1]
    tables.open(second, CachedPrefix([1], 1), 3)
    assert second.blocks == [1, 2, 3]


def test_blocks_are_known_by_the_hashes_that_gateways_compute(tables):
    tokens = tuple(range(9))
    request = Client(tokens).request(adapter="adapter", cache_salt="salt")
    assert tables.hashes(request, 2) == chain(pack_tokens(tokens), 4, root("revision", "adapter", "salt"))


def test_a_fork_keeps_what_describes_the_sequence():
    """Without its salt or adapter, its next blocks would be shared with other tenants' and models' sequences."""
    described = {"priority": 1, "tenant": "tenant", "cache_salt": "salt", "adapter": "adapter", "trace": "trace"}
    counted = {"handed_off": True, "paused": True, "computed": 6, "cached_tokens": 4, "arrival": 2.0, "scored": 3}
    fork = ask(6, choices=(0, 1)).request(**described, **counted).fork(1, [0, 1])
    kept = described | counted | {"choices": (1,), "blocks": [0, 1], "farthest": 6}
    assert {name: getattr(fork, name) for name in kept} == kept


def test_every_full_block_of_a_window_is_stored():
    windowed = BlockTables(BlockPool(8, EventLog("epoch"), (8,), 4), SequenceSizes(4, (8,)), kv_revision="revision")
    request = ask(9).request()
    windowed.open(request, NOTHING, 3)
    request.computed = 9
    windowed.store(request)
    stored = [windowed.pool.cache.find(block_hash, 1) for block_hash in windowed.hashes(request, 2)]
    assert stored == [request.windows[0][0], request.windows[0][1]]


def test_growing_says_how_much_is_lacking_and_changes_nothing(tables):
    request = ask(4).request()
    tables.open(request, NOTHING, 1)
    table = list(request.blocks)
    assert tables.grow(request, 40) == 2
    assert request.blocks == table
    tables.check_integrity([table])


def test_equal_content_ends_up_in_one_block(tables):
    requests = [ask(9).request() for _ in range(2)]
    for request in requests:
        tables.open(request, NOTHING, 3)
        request.computed = 9
        tables.store(request)
    assert [one == other for one, other in zip(*(request.blocks for request in requests), strict=True)] == [
        True,
        True,
        False,
    ]
    tables.check_integrity([request.blocks for request in requests])
