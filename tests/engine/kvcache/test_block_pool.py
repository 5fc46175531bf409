"""Every block is free, cached, used or quarantined; cached ones can be found until their memory is needed."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_protocol.wire.block_hash import child, root, split
from legato_protocol.wire.kv_events import Removed, Stored


def pool_of(size):
    return BlockPool(size, EventLog("epoch"))


def hold_chain(pool, tokens):
    """A sequence of one-token blocks, stored and held: its blocks and hashes."""
    hashes = _chain(tokens)
    blocks = pool.cache.match(hashes)
    pool.take(blocks)
    blocks += pool.allocate(len(tokens) - len(blocks))
    for index in range(len(blocks)):
        blocks[index] = pool.store(blocks[index], hashes[index], hashes[index - 1] if index else None)
    return blocks, hashes


def store_chain(pool, tokens):
    """A sequence of one-token blocks, stored and released; returns its hashes."""
    blocks, hashes = hold_chain(pool, tokens)
    pool.release(blocks)
    return hashes


def test_blocks_come_in_runs_of_neighbours():
    pool = pool_of(16)
    first, second = pool.allocate(3), pool.allocate(5)
    assert first == [0, 1, 2]
    assert second == [3, 4, 5, 6, 7]
    pool.release(first)
    assert pool.allocate(4) == [8, 9, 10, 11]
    assert pool.allocate(2, after=7) in ([12, 13], [0, 1])
    pool.check_integrity()


def test_the_search_goes_on_where_it_ended_and_begins_anew_at_the_end():
    """So blocks that were given back are joined by their neighbours before they are given again."""
    pool = pool_of(8)
    pool.release(pool.allocate(3))
    assert [pool.allocate(count) for count in (3, 2, 2, 2, 1)] == [[3, 4, 5], [6, 7], [0, 1], None, [2]]


@pytest.mark.parametrize(
    ("size", "free", "count", "after", "expected"),
    [
        (16, [4, 5], 2, 3, [4, 5]),
        (7, [0, 1, 2, 4, 5, 6], 6, None, [0, 1, 2, 4, 5, 6]),
        (8, [0, 2, 4, 6], 4, None, [0, 2, 4, 6]),
        (8, [0, 2, 4, 6], 5, None, None),
    ],
    ids=["from the table's last block on", "in runs of half the length", "scattered", "too few"],
)
def test_blocks_are_given_in_the_best_runs_that_are_free(size, free, count, after, expected):
    pool = pool_of(size)
    blocks = pool.allocate(8 if size == 16 else size)
    pool.release([blocks[index] for index in free])
    assert pool.allocate(count, after) == expected


def test_the_least_recently_used_leaf_goes_first():
    pool = pool_of(5)
    old, new = store_chain(pool, b"ab"), store_chain(pool, b"xy")
    pool.take(pool.cache.match(old))
    pool.release(pool.cache.match(old))
    pool.allocate(2)
    assert len(pool.cache.match(new)) == 1
    pool.allocate(2)
    assert [len(pool.cache.match(chain)) for chain in (new, old)] == [0, 1]
    pool.check_integrity()


def test_as_many_evicted_blocks_are_remembered_as_the_cache_has_had():
    pool = pool_of(2)
    a, b, c, d = (store_chain(pool, bytes([each]))[0] for each in b"abcd")
    assert [pool.cache.was_evicted(each) for each in (a, b, c, d)] == [True, True, False, False]
    store_chain(pool, b"ba")  # evicts c and d
    assert [pool.cache.was_evicted(each) for each in (a, b, c, d)] == [False, False, True, True]
    pool.check_integrity()


def test_equal_content_is_kept_once():
    pool = pool_of(4)
    hashes = store_chain(pool, b"ab")
    (block,) = pool.allocate(1)
    known = pool.store(block, hashes[0], None)
    assert known != block
    assert (pool.references(known), pool.references(block)) == (1, 0)
    pool.check_integrity()


def test_mistakes_of_owners_raise():
    pool = pool_of(4)
    (block,) = pool.allocate(1)
    pool.take((block,))
    with pytest.raises(ValueError, match="single owner"):
        pool.quarantine((block,))
    pool.release((block,))
    pool.release((block,))
    with pytest.raises(ValueError, match="not referenced"):
        pool.release((block,))
    with pytest.raises(KeyError):
        pool.readmit((block,))
    blocks, _ = hold_chain(pool, b"a")
    with pytest.raises(ValueError, match="single owner"):
        pool.quarantine(blocks)


def test_events_are_numbered_in_order_and_joined_by_kind():
    pool = pool_of(2)
    first = store_chain(pool, b"ab")
    pool.allocate(1)
    events = [(type(event), event.epoch, event.number, split(event.hashes)) for event in pool.events.take()]
    assert events == [(Stored, "epoch", 1, first), (Removed, "epoch", 2, first[1:])]
    assert pool.events.take() == ()


def test_a_forgotten_sequence_loses_the_blocks_that_only_it_computed():
    """Blocks that another has, or has computed further blocks from, stay findable, and so do all others."""
    pool = pool_of(12)
    held, built_on, other = store_chain(pool, b"ab"), store_chain(pool, b"xyz"), store_chain(pool, b"q")
    pool.take(pool.cache.match(held))
    for tokens, known in ((b"abcd", 2), (b"xyuv", 2)):
        blocks, hashes = hold_chain(pool, tokens)
        pool.events.take()
        pool.forget(blocks)
        (removed,) = pool.events.take()
        assert split(removed.hashes) == hashes[:1:-1]
        assert len(pool.cache.match(hashes)) == known
        assert not any(map(pool.cache.is_stored, blocks[2:]))
        pool.release(blocks)
        pool.check_integrity()
    assert [len(pool.cache.match(chain)) for chain in (held, built_on, other)] == [2, 3, 1]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 24))
def test_random_owners_keep_the_books(seed, size):
    """Allocate, share, store, release, quarantine, readmit and forget at random; events tell what is found."""
    random, pool = Random(seed), pool_of(size)
    tables, away, known = [], [], set()
    for _ in range(60):
        operation = random.randrange(7)
        if operation <= 1:
            prompt = [random.randrange(2) for _ in range(random.randrange(1, 6))]
            hashes = _chain(prompt)
            matched = pool.cache.match(hashes)
            pool.take(matched)
            fresh = pool.allocate(len(prompt) - len(matched))
            if fresh is None:
                pool.release(matched)
            else:
                tables.append((matched + fresh, hashes))
        elif operation == 2 and tables:
            blocks, hashes = random.choice(tables)
            for index in range(len(blocks)):
                blocks[index] = pool.store(blocks[index], hashes[index], hashes[index - 1] if index else None)
        elif operation == 3 and tables:
            pool.release(tables.pop(random.randrange(len(tables)))[0])
        elif operation == 4 and (fresh := pool.allocate(random.randrange(1, 4))):
            pool.quarantine(fresh)
            away.append(fresh)
        elif operation == 5 and away:
            pool.readmit(away.pop(random.randrange(len(away))))
        elif operation == 6 and tables and random.random() < 0.3:
            blocks, _ = tables.pop(random.randrange(len(tables)))
            stored = {block for block in range(size) if pool.cache.is_stored(block)}
            pool.forget(blocks)
            lost = {block for block in stored if not pool.cache.is_stored(block)}
            assert lost <= set(blocks)
            assert all(pool.references(block) == 1 for block in lost)
            pool.release(blocks)
        pool.check_integrity()
        counts = pool.counts()
        assert counts.used == len({block for blocks, _ in tables for block in blocks})
        assert counts.quarantined == sum(map(len, away))
        assert counts.free + counts.cached == pool.available == size - counts.used - counts.quarantined
        for event in pool.events.take():
            hashes = set(split(event.hashes))
            known = known | hashes if isinstance(event, Stored) else known - hashes
        assert known == set(pool.cache)


def _chain(prompt):
    hashes = []
    for token in prompt:
        hashes.append(child(hashes[-1] if hashes else root("r"), bytes([token])))
    return hashes


@pytest.mark.parametrize(
    ("faults", "named"),
    [
        (["free a used one"], "block 0 is in 2 states of free, cached, used, quarantined"),
        (["lose a free one"], "block 3 is in 0 states of free, cached, used, quarantined"),
        (["free a used one", "lose a free one"], "block 0 is in 2 states of free, cached, used, quarantined"),
        (["find a free one"], "free block 0 is in the prefix cache"),
        (["miscount"], "1 blocks are free, 2 are counted"),
    ],
)
def test_a_fault_of_the_books_is_named(faults, named):
    pool = pool_of(4)
    blocks = pool.allocate(2)
    store_chain(pool, b"a")
    for fault in faults:
        match fault:
            case "free a used one":
                pool._free[blocks[0]] = 1
                pool._free_count += 1
            case "lose a free one":
                pool._free[3] = 0
                pool._free_count -= 1
            case "find a free one":
                pool.store(blocks[0], b"other", None)
                pool._references[blocks[0]] = 0
                pool._set_free(blocks[0])
            case "miscount":
                pool._free_count += 1
    with pytest.raises(AssertionError) as caught:
        pool.check_integrity()
    assert str(caught.value) == named
