"""A part of a prefix in the KV index, and the workers that have it. Pure."""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(slots=True)
class PrefixRun:
    """Consecutive blocks of one prefix. Workers are bits of integers."""

    hashes: list[bytes]
    known: int = 0  # workers looked up: each is in `whole` or in one of `parts`
    whole: int = 0  # workers that have every block
    parts: dict[int, int] = field(default_factory=dict)  # length of the unbroken prefix → workers
    used: bool = False  # since its blocks were last due for eviction

    def add(self, workers: int, holding: list[int]) -> None:
        """Adds workers; `holding[n]` are the new ones that have each of the first n blocks."""
        self.known |= workers
        self.whole |= holding[-1]
        if holding[-1] != holding[0]:
            for blocks, (before, after) in enumerate(pairwise(holding)):
                if before != after:
                    self.parts[blocks] = self.parts.get(blocks, 0) | (before ^ after)

    def remove(self, workers: int) -> None:
        """Removes workers: they are no longer known."""
        self.known &= ~workers
        self.whole &= ~workers
        self.parts = {blocks: left for blocks, known in self.parts.items() if (left := known & ~workers)}
