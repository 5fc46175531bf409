"""Runs of blocks that are neighbours at both their source and their target, moved as one."""

from collections.abc import Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """Moves `length` blocks from `source` on to `target`, `target + 1`, …"""

    source: int
    target: int
    length: int


def runs(sources: Sequence[int], targets: Sequence[int]) -> list[Run]:
    """Runs that move the i-th of `sources` to the i-th of `targets`; consecutive neighbours share a run.

    Raises ValueError if the lengths differ.
    """
    merged: list[Run] = []
    for source, target in zip(sources, targets, strict=True):
        last = merged[-1] if merged else None
        if last and (source, target) == (last.source + last.length, last.target + last.length):
            merged[-1] = Run(last.source, last.target, last.length + 1)
        else:
            merged.append(Run(source, target, 1))
    return merged
