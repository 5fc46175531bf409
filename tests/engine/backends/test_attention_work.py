"""Work for attention on a processor: all of it, in the order in which threads take it from a counter."""

import pytest

from legato_engine.backends.cpu.attention_work import tiles
from legato_engine.runner import inputs
from legato_engine.scheduler.batch import Row

MIXED = [(0, 63), (3000, 512), (40, 1), (900, 1), (0, 1), (160, 17)]


def step(lengths):
    """(start, tokens) of each row."""
    return inputs.build([Row([0] * count, start, range(999)) for start, count in lengths], 16)


@pytest.mark.parametrize("shared", [1, 3, 8, 16, 40])
@pytest.mark.parametrize("lengths", [[(0, 512)], MIXED, [(n, 1) for n in range(0, 3200, 100)]])
def test_every_query_is_in_one_tile_and_those_that_see_the_most_positions_are_first(lengths, shared):
    """Whatever threads end with is short, so that none works long after the others. All tiles of a row but the last are
    full, as keys and values are read once for 32 lanes."""
    work = tiles(step(lengths), shared)

    positions = [tile["start"] + (tile["lane"] + tile["lanes"] - 1) // shared + 1 for tile in work]
    assert positions == sorted(positions, reverse=True)
    assert max(positions) == max(start + count for start, count in lengths)
    queries = [
        (tile["token"] + lane // shared, lane % shared)
        for tile in work
        for lane in range(tile["lane"], tile["lane"] + tile["lanes"])
    ]
    assert sorted(queries) == [(token, head) for token in range(sum(n for _, n in lengths)) for head in range(shared)]
    for row, (_, count) in enumerate(lengths):
        sizes = sorted(work["lanes"][work["row"] == row])
        assert sizes[1:] == [32] * ((count * shared - 1) // 32)
