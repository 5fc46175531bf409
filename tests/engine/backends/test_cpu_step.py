"""Work for attention on a processor: all of it, in equal shares."""

import numpy as np
import pytest

from legato_engine.backends.cpu.step import tiles
from legato_engine.runner import inputs
from legato_engine.scheduler.batch import Row

SHARED = 3


def _rows(*lengths):
    """(start, tokens) of each row."""
    return inputs.build([Row([0] * count, start, range(999)) for start, count in lengths], 16)


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize(
    "lengths", [[(0, 512)], [(3000, 512), (40, 1), (90, 1)], [(n, 1) for n in range(0, 3200, 100)]]
)
def test_every_thread_sees_equally_many_positions(lengths, threads):
    step = _rows(*lengths)
    work = tiles(step, SHARED, threads)
    costs = work[:, 2] + work[:, 3] // SHARED + 1
    shares = [sum(share) for share in np.array_split(costs, threads)]
    assert max(shares) - min(shares) <= 2 * costs.max()
    assert sorted(map(tuple, work)) == sorted(map(tuple, tiles(step, SHARED, 1)))


def test_fewer_tiles_than_threads_are_one_each():
    assert len(tiles(_rows((5, 1), (9, 1)), SHARED, 8)) == 2
