"""Moves of blocks between the arena and slots of a slower tier. A step does them in their order before it computes."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple


class Content(NamedTuple):
    """A full block: its hash, its parent's (None: the first of a sequence), and its group."""

    block_hash: bytes
    parent: bytes | None
    group: int


class Save(NamedTuple):
    """Copies a block of the arena to a slot."""

    block: int
    slot: int


class Restore(NamedTuple):
    """Copies a slot to a block of the arena."""

    slot: int
    block: int


Move = Save | Restore


class MoveTime(NamedTuple):
    """The duration of moves of a step in one direction, and their number of blocks."""

    kind: type[Move]
    blocks: int
    seconds: float


def in_batches(moves: Iterable[Move]) -> Iterator[tuple[type[Move], list[int], list[int]]]:
    """Divides moves into batches that may be done in any order: all of one direction, with their sources and targets.

    Sources ascend. Of moves to one target, only the last one has an effect.
    """
    for kind, group in groupby(moves, type):
        batch = sorted([(source, target) for target, source in {move[1]: move[0] for move in group}.items()])
        yield kind, [source for source, _ in batch], [target for _, target in batch]
