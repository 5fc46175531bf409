"""Block tables: what a step in flight holds, and who copies on write."""

import pytest

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.scheduler.block_tables import Ledger


@pytest.fixture
def ledger():
    return Ledger(BlockPool(8, EventLog("epoch")), block_size=4, kv_revision="revision")


def forked(ledger, make_client, branches):
    """Sequences of 6 computed tokens on the same two blocks, the last one half full."""
    request = make_client(tuple(range(6))).request()
    assert ledger.open(request, [], 2)
    request.computed = 6
    ledger.store(request)
    others = []
    for choice in range(1, branches):
        ledger.pool.take(request.blocks)
        others.append(request.fork(choice, request.blocks))
    return [request, *others]


def test_all_but_the_last_writer_copy(ledger, make_client):
    requests = forked(ledger, make_client, 3)
    shared = requests[0].blocks[1]
    ledger.begin_step()
    assert [ledger.grow(request, 7) for request in requests] == [0, 0, 0]
    assert [source for source, _ in ledger.copies] == [shared, shared]
    assert requests[2].blocks[1] == shared
    assert len({request.blocks[1] for request in requests}) == 3
    assert len({request.blocks[0] for request in requests}) == 1
    ledger.check_integrity([request.blocks for request in requests])
    ledger.end_step()
    ledger.check_integrity([request.blocks for request in requests])


def test_a_copied_block_is_not_reused_before_the_step_was_processed(ledger, make_client):
    first, second = forked(ledger, make_client, 2)
    shared = first.blocks[1]
    ledger.begin_step()
    ledger.grow(first, 7)
    ledger.release(second)
    assert ledger.pool.references(shared) == 1
    ledger.end_step()
    assert ledger.pool.references(shared) == 0


def test_growing_says_how_much_is_lacking_and_changes_nothing(ledger, make_client):
    request = make_client(tuple(range(4))).request()
    assert ledger.open(request, [], 1)
    table = list(request.blocks)
    assert ledger.grow(request, 40) == 2
    assert request.blocks == table
    ledger.check_integrity([table])


def test_equal_content_ends_up_in_one_block(ledger, make_client):
    requests = [make_client(tuple(range(9))).request() for _ in range(2)]
    for request in requests:
        assert ledger.open(request, [], 3)
        request.computed = 9
        ledger.store(request)
    assert requests[0].blocks[:2] == requests[1].blocks[:2]
    assert requests[0].blocks[2] != requests[1].blocks[2]
    ledger.check_integrity([request.blocks for request in requests])
