"""Where a peer writes what it sends, and how that gets to the blocks of the sequence."""

from collections.abc import Sequence
from typing import Protocol

from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.device import BlockCopy, DirectBlocks
from legato_engine.transfer.staging import Staging


class Landing(Protocol):
    """A *place* is what a grant names for a block; `largest` is how many one grant may have."""

    largest: int

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...] | None:
        """A place for each of these blocks, or None while there is no room for all of them."""

    def land(self, places: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        """What the peer has written to the places goes to the blocks; they may be used when that is done."""

    def give_back(self, places: Sequence[int]) -> None:
        """No peer writes to them any more, and nothing is read from them."""


class Landed:
    """Implements `BlockCopy`: the blocks hold it already."""

    def __init__(self, sums: list[int]) -> None:
        self._sums = sums

    def done(self) -> bool:
        return True

    def sums(self) -> list[int]:
        return self._sums


class InArena:
    """Implements `Landing` for an arena that peers reach: they write to the blocks themselves."""

    def __init__(self, memory: ArenaMemory, checksum: bool) -> None:
        self.largest = memory.num_blocks
        self._memory = memory
        self._checksum = checksum

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(blocks)

    def land(self, places: Sequence[int], blocks: Sequence[int]) -> Landed:
        return Landed(self._memory.sums(blocks) if self._checksum else [])

    def give_back(self, places: Sequence[int]) -> None:
        pass


class InDevice:
    """Implements `Landing` for a device's arena that peers reach: they write to the blocks, and the device sums up."""

    def __init__(self, memory: ArenaMemory, direct: DirectBlocks) -> None:
        self.largest = memory.num_blocks
        self._direct = direct

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(blocks)

    def land(self, places: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        return self._direct.arrived(blocks)

    def give_back(self, places: Sequence[int]) -> None:
        pass


class InSlots:
    """Implements `Landing` for an arena that only the device reaches: see `staging`."""

    def __init__(self, staging: Staging) -> None:
        self.largest = staging.landing.count
        self._staging = staging

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...] | None:
        return self._staging.landing.take(len(blocks))

    def land(self, places: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        return self._staging.copies.to_blocks(places, blocks)

    def give_back(self, places: Sequence[int]) -> None:
        self._staging.landing.give_back(places)
