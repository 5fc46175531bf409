"""Slots in the host's memory for blocks on their way between an arena that UCX does not reach and a peer.

A peer writes to *landing* slots, which its grant names instead of blocks; what has come is copied on to the blocks. Own
blocks are copied to slots of the *ring* and put from there, a few at a time, so that copies and puts overlap. A session
takes its landing slots all at once or waits for them, in the order of the grants, and there are enough for the longest
sequence; a put holds its slots of the ring only until it has ended. So none waits for another that waits for it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from legato_engine.errors import TooLittleMemory
from legato_engine.transfer.device import BlockCopies

_RING_BYTES = 64 << 20
_PUTS_IN_RING = 4  # one is copied, one is on its way, and none waits for the end of another's
_SHARE = 4  # of the host's free memory, for landing slots
_MOST = 8 << 30  # bytes of those, unless the longest sequence needs more; pinning takes a second for a few GiB


class Slots:
    """Which of the slots `first, first + 1, …` are free."""

    def __init__(self, first: int, count: int) -> None:
        self.count = count
        self._own = range(first, first + count)
        self._free = list(self._own)  # a heap

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...] | None:
        """As many slots, the lowest ones in their order, as neighbours are moved together; or none while there are
        fewer."""
        if count > len(self._free):
            return None
        return tuple(heapq.heappop(self._free) for _ in range(count))

    def give_back(self, slots: Sequence[int]) -> None:
        """Raises ValueError for a slot that is free, or not of these."""
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
        """Blocks."""
        return max(1, self.ring.count // _PUTS_IN_RING)


def landing_bytes(available: int) -> int:
    """Bytes of landing slots that a host with `available` bytes of free memory can easily spare."""
    return min(available // _SHARE, _MOST)


def slot_counts(block_bytes: int, longest: int, num_blocks: int, available: int, many: bool) -> tuple[int, int]:
    """How many landing slots there are to be, and how many of the ring, for sequences of up to `longest` blocks in an
    arena of `num_blocks`. `available` is the host's free memory, in bytes; `many` says that sequences will land all the
    time. Raises TooLittleMemory."""
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
