"""The memory that a peer writes blocks to, and the way from there to the blocks of the sequence."""

from collections.abc import Sequence
from typing import Protocol

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.device.interface import BlockCopy, DirectBlocks
from legato_engine.transfer.device.staging import Staging


class Landing(Protocol):
    """Memory for incoming blocks. A grant names a *place* for each block; it may have at most `largest`."""

    largest: int

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...] | None:
        """Returns a place for each of these blocks, or None while there is no room for all of them."""

    def land(self, places: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        """Moves written places to the blocks, which may be used when this is done."""

    def give_back(self, places: Sequence[int]) -> None:
        """Frees places that are neither written nor read any more."""


class Landed:
    """Implements `BlockCopy` for blocks that the peer wrote to directly."""

    def __init__(self, sums: list[int]) -> None:
        self._sums = sums

    def done(self) -> bool:
        return True

    def sums(self) -> list[int]:
        return self._sums


class InArena:
    """Implements `Landing` for an arena in host memory: peers write to the blocks."""

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
    """Implements `Landing` for an arena in device memory that peers reach: the device computes the sums."""

    def __init__(self, memory: ArenaMemory, direct: DirectBlocks) -> None:
        self.largest = memory.num_blocks
        self._direct = direct

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(blocks)

    def land(self, places: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        return self._direct.sum_incoming(blocks)

    def give_back(self, places: Sequence[int]) -> None:
        pass


class InSlots:
    """Implements `Landing` for an arena in device memory that peers do not reach: see `staging`."""

    def __init__(self, staging: Staging) -> None:
        self.largest = staging.landing.count
        self._staging = staging

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...] | None:
        return self._staging.landing.take(len(blocks))

    def land(self, places: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        return self._staging.copies.to_blocks(places, blocks)

    def give_back(self, places: Sequence[int]) -> None:
        self._staging.landing.give_back(places)
