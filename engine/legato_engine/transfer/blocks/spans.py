"""Blocks of a sequence in its groups of layers, as parts of a hand-off. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

FirstBlocks = Callable[[int], tuple[int, ...]]  # position → the first block that it sees, by group with a window


def no_windows(position: int) -> tuple[int, ...]:
    """Implements `FirstBlocks` for models with one group."""
    return ()


@dataclass(frozen=True, slots=True)
class WindowBlocks:
    """Blocks `first`, `first` + 1, … of a sequence, in a group with a window."""

    first: int
    blocks: Sequence[int]

    def since(self, number: int) -> "WindowBlocks":
        """The blocks from number `number` on."""
        return WindowBlocks(max(self.first, number), self.blocks[max(0, number - self.first) :])

    def before(self, number: int) -> "WindowBlocks":
        """The blocks before number `number`."""
        return WindowBlocks(self.first, self.blocks[: max(0, number - self.first)])


@dataclass(frozen=True, slots=True)
class GrantedSpan:
    """Numbers `first … first + count - 1` of a group, which are `offset`, `offset` + 1, … of all granted blocks."""

    first: int
    count: int
    offset: int

    def holds(self, first: int, last: int) -> bool:
        """True if all numbers from `first` to before `last` are granted."""
        return self.first <= first and last <= self.first + self.count

    def indices(self, first: int, last: int) -> range:
        """The indices among all granted blocks of the numbers from `first` to before `last`."""
        return range(self.offset + first - self.first, self.offset + last - self.first)


def spans_of(firsts: Sequence[int], counts: Sequence[int]) -> tuple[GrantedSpan, ...]:
    """The spans of groups whose granted blocks follow each other."""
    spans, offset = list[GrantedSpan](), 0
    for first, count in zip(firsts, counts, strict=True):
        spans.append(GrantedSpan(first, count, offset))
        offset += count
    return tuple(spans)
