"""Slots in host memory for transfers between a peer and an arena that UCX does not reach.

A peer writes to *landing* slots, which its grant names instead of blocks; received blocks are copied on to the arena.
Own blocks are copied to slots of the *ring* and put from there, a few at a time, so that copies and puts overlap.

This cannot deadlock: a session takes all of its landing slots in one step, in the order of the grants, and there are
enough for the longest sequence; a put keeps its slots of the ring only until it has ended.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from legato_engine.errors import TooLittleMemory
from legato_engine.transfer.device.interface import BlockCopies

_RING_BYTES = 64 << 20
_PUTS_IN_RING = 4  # one is copied, one is transferred, and others need not wait for either
_SHARE = 4  # landing slots may take a fourth of the host's free memory …
_MOST = 8 << 30  # … and this many bytes, unless the longest sequence needs more; pinning a few GiB takes a second


class Slots:
    """The free ones of the slots `first, first + 1, …`."""

    def __init__(self, first: int, count: int) -> None:
        self.count = count
        self._own = range(first, first + count)
        self._free = list(self._own)  # a heap

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """Takes the lowest free slots, ascending, since neighbours are moved together; None if there are too few."""
        if count > len(self._free):
            return None
        return tuple(heapq.heappop(self._free) for _ in range(count))

    def give_back(self, slots: Sequence[int]) -> None:
        """Frees slots. Raises ValueError for a slot that is free already or not one of these."""
        if not set(slots) <= set(self._own) - set(self._free) or len(set(slots)) < len(slots):
            raise ValueError(f"slots {list(slots)} were not all taken from {self._own}")
        for slot in slots:
            heapq.heappush(self._free, slot)


@dataclass(frozen=True, slots=True)
class Staging:
    """Landing slots come first in memory, at `copies.address`, which peers write to; the ring follows."""

    copies: BlockCopies
    landing: Slots
    ring: Slots

    @classmethod
    def over(cls, copies: BlockCopies, landing: int, ring: int) -> "Staging":
        return cls(copies, Slots(0, landing), Slots(landing, ring))

    @property
    def slots(self) -> int:
        return self.landing.count + self.ring.count

    @property
    def largest_put(self) -> int:
        """Most blocks of one put."""
        return max(1, self.ring.count // _PUTS_IN_RING)


def landing_bytes(available: int) -> int:
    """Bytes of landing slots that a host with `available` bytes of free memory can easily spare."""
    return min(available // _SHARE, _MOST)


def slot_counts(block_bytes: int, longest: int, num_blocks: int, available: int, many: bool) -> tuple[int, int]:
    """Numbers of landing slots and of ring slots for sequences of up to `longest` blocks in an arena of `num_blocks`.

    `available` is the host's free memory, in bytes; `many`: sequences will land all the time. Raises TooLittleMemory.
    """
    ring = min(num_blocks, max(_PUTS_IN_RING, _RING_BYTES // block_bytes))
    usual = landing_bytes(available) // block_bytes if many else 0
    landing = min(num_blocks, max(longest, usual))
    needed = (landing + ring) * block_bytes
    if needed > available:
        raise TooLittleMemory(
            f"hand-offs from a GPU's memory need {needed:,} bytes of the host's, {landing} blocks of {block_bytes:,} "
            f"bytes that a sequence lands in and {ring} that are sent from; {available:,} are available: give the "
            "worker more memory, or a lower maxLength"
        )
    return landing, ring
