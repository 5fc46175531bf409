"""Blocks that are neighbours on both sides are moved as one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.transfer.blocks.puts import spans
from legato_engine.transfer.blocks.runs import runs
from legato_engine.transfer.link import PutSpan


@pytest.mark.parametrize(
    ("sources", "targets", "found"),
    [
        ([], [], []),
        ([3], [1], [(3, 1, 1)]),
        ([3, 4, 5], [0, 1, 2], [(3, 0, 3)]),
        ([3, 4, 5], [0, 2, 3], [(3, 0, 1), (4, 2, 2)]),
        ([3, 5, 6], [0, 1, 2], [(3, 0, 1), (5, 1, 2)]),
        ([4, 3], [1, 0], [(4, 1, 1), (3, 0, 1)]),
    ],
)
def test_neighbours_share_a_run(sources, targets, found):
    assert runs(sources, targets) == found


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_every_block_is_moved_once_in_its_order(pairs):
    moved = [
        (source + i, target + i) for source, target, count in runs(*zip(*pairs, strict=True)) for i in range(count)
    ] if pairs else []  # fmt: skip
    assert moved == pairs


def test_every_block_has_its_place_and_each_run_a_span():
    with pytest.raises(ValueError, match="shorter"):
        runs([1, 2], [1])
    assert spans([3, 5, 6], 1000, [4, 1, 2], 5000, 10) == [PutSpan(1030, 5040, 10), PutSpan(1050, 5010, 20)]
