"""Blocks that are neighbours where they are and where they go to, moved as one."""

from collections.abc import Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """`length` blocks from `source` on go to `target`, `target + 1`, …"""

    source: int
    target: int
    length: int


def runs(sources: Sequence[int], targets: Sequence[int]) -> list[Run]:
    """The i-th of `sources` goes to the i-th of `targets`; neighbours share a run where they come in that order.

    Raises ValueError where there are not as many of both.
    """
    found: list[Run] = []
    for source, target in zip(sources, targets, strict=True):
        last = found[-1] if found else None
        if last and (source, target) == (last.source + last.length, last.target + last.length):
            found[-1] = Run(last.source, last.target, last.length + 1)
        else:
            found.append(Run(source, target, 1))
    return found
