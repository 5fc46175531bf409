"""Blocks that are neighbours here and there are written as one."""

import pytest

from legato_engine.transfer.link import PutSpan
from legato_engine.transfer.puts import spans

HERE, THERE, SIZE = 1000, 5000, 10


@pytest.mark.parametrize(
    ("blocks", "targets", "runs"),
    [
        ([], [], []),
        ([3], [1], [(3, 1, 1)]),
        ([3, 4, 5], [0, 1, 2], [(3, 0, 3)]),
        ([3, 4, 5], [0, 2, 3], [(3, 0, 1), (4, 2, 2)]),
        ([3, 5, 6], [0, 1, 2], [(3, 0, 1), (5, 1, 2)]),
        ([4, 3], [1, 0], [(4, 1, 1), (3, 0, 1)]),
    ],
)
def test_one_span_for_each_run(blocks, targets, runs):
    expected = [PutSpan(HERE + a * SIZE, THERE + b * SIZE, n * SIZE) for a, b, n in runs]
    assert spans(blocks, HERE, targets, THERE, SIZE) == expected


def test_every_block_has_its_place():
    with pytest.raises(ValueError, match="shorter"):
        spans([1, 2], HERE, [1], THERE, SIZE)
