"""Memory that the ranks of a worker share on a host, and sums and gathers through it.

Each rank has two slots, which it uses alternately. It writes to a slot again only after all ranks have arrived at the
operation in between, and so have read what the slot held.
"""

import mmap
import os
from collections.abc import Sequence

import numpy as np

from legato_engine.backends.cpu.workspace import Array
from legato_engine.backends.sharded.rank import Rank
from legato_engine.kernels.cpu import reduction

_SLOT = 1 << 18  # float32 numbers; larger arrays take several operations
_COUNTERS = 4096  # bytes


def nbytes(ranks: int) -> int:
    return _COUNTERS + 2 * ranks * _SLOT * 4


class SharedMemory:
    """Ranks call the same operations in the same order; each waits for all others."""

    def __init__(self, fd: int, rank: Rank) -> None:
        """`fd` is a file of `nbytes` zeros."""
        self._rank = rank
        self._memory = mmap.mmap(fd, nbytes(rank.count))
        self._counters: Array = np.frombuffer(self._memory, np.int64, rank.count * reduction.LINE)
        numbers: Array = np.frombuffer(self._memory, np.float32, offset=_COUNTERS)
        self._slots = numbers.reshape(2, rank.count, _SLOT)
        self._arrivals = 0

    def add(self, x: Array) -> None:
        """Replaces x, float32 and contiguous, with the sum over ranks."""
        flat = x.reshape(-1)
        for first in range(0, flat.size, _SLOT):
            piece = flat[first : first + _SLOT]
            slots = self._exchange(piece)
            reduction.add(slots, piece.size, piece)

    def gather(self, x: Array, widths: Sequence[int]) -> Array | None:
        """The arrays x, float32 [rows, width], of all ranks next to each other, for the first rank; None for others."""
        rows, each = len(x), max(1, _SLOT // max(widths))
        out = np.empty((rows, sum(widths)), np.float32) if self._rank.first else None
        for first in range(0, rows, each):
            piece = np.ascontiguousarray(x[first : first + each])
            slots = self._exchange(piece.reshape(-1))
            if out is not None:
                parts = [
                    slots[rank, : len(piece) * width].reshape(len(piece), width) for rank, width in enumerate(widths)
                ]
                np.concatenate(parts, 1, out=out[first : first + each])
        return out

    def _exchange(self, piece: Array) -> Array:
        """Writes to this rank's slot; returns the slots of all ranks once all have written."""
        slots: Array = self._slots[self._arrivals % 2]
        slots[self._rank.index, : piece.size] = piece
        self._arrivals += 1
        reduction.arrive(self._counters, self._rank.index, self._rank.count, self._arrivals)
        return slots


def make(ranks: int) -> int:
    """The descriptor of such a file. Raises OSError."""
    fd = os.memfd_create("legato-ranks", 0)
    os.ftruncate(fd, nbytes(ranks))
    return fd
