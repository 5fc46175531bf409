"""The cache has ids of first blocks, by salt and all text before them, within its limit."""

import random

import budget
import pytest

from legato_gateway.tokenizer.block_cache import ENTRY, BlockCache, CacheCounts, CacheUse, CutText


def look_up(cache: BlockCache, salt: str, *blocks: CutText | str) -> list[bool]:
    """Looks blocks up as a text's, and adds the missing ones; returns which were there."""
    cut = [block if isinstance(block, CutText) else CutText(block) for block in blocks]
    keys = cache.keys(salt, cut)
    taken = cache.get(keys, cut)
    for key, block, ids in zip(keys, cut, taken, strict=True):
        assert ids in (None, block.text.encode())
        cache.put(key, block.text.encode())
    return [ids is not None for ids in taken]


@pytest.mark.parametrize(
    ("salt", "blocks", "there"),
    [
        ("s", ["one", "two", "new"], [True, True, False]),
        ("t", ["one", "two", "three"], [False, False, False]),
        ("", ["one"], [False]),
        ("s", ["two", "three"], [False, False]),
        ("s", ["on", "etwo", "three"], [False, False, False]),
        ("s", ["ONE", "two", "three"], [False, False, False]),
        ("s", ["one", CutText("two", resumes=True), "three"], [True, False, False]),
    ],
)
def test_blocks_match_after_the_same_text_and_under_the_same_salt(salt, blocks, there):
    cache = BlockCache()
    look_up(cache, "s", "one", "two", "three")
    assert look_up(cache, salt, *blocks) == there
    assert cache.counts.hits == sum(len(block) for block, known in zip(blocks, there, strict=True) if known)
    assert cache.counts.misses >= len("onetwothree")


def test_the_least_recently_used_leave_and_the_limit_holds():
    limit, rng = 20 * ENTRY, random.Random(1)
    cache = BlockCache(limit)
    for _ in range(budget.times(300)):
        look_up(cache, rng.choice("st"), *rng.choices(["a", "b" * 200, "c" * limit], k=rng.randrange(9)))
        look_up(cache, "kept", "always", "here")
        cache.check_integrity()
        assert look_up(cache, "kept", "always", "here") == [True, True]
    assert look_up(cache, "s", "c" * limit, "c" * limit) == [False, False]


def test_the_use_of_all_processes_adds_up_from_the_newest_counts_of_each():
    use = CacheUse()
    for process, counts in ((1, CacheCounts(9, 9, 9)), (2, CacheCounts(10, 20, 30)), (1, CacheCounts(1, 2, 3))):
        use.update(process, counts)
    assert (use.used, use.hits, use.misses) == (11, 22, 33)
