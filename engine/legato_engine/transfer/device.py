"""What hand-offs need of a device that works by itself: when something that was begun there is done, and copies between
its memory and the host's. No torch.

Nothing here blocks or wakes anybody: who waits asks again after `LOOK`.
"""

from collections.abc import Sequence
from typing import Protocol

LOOK = 0.001  # seconds between two looks at the device, while something waits for it


class DeviceEvent(Protocol):
    """A point in the device's work."""

    def done(self) -> bool:
        """Whether all that was begun there before it has ended. Never blocks; once true, it stays so."""


class BlockCopy(DeviceEvent, Protocol):
    """Copies that were begun together, if any, and after them the sums of the blocks as the device has them."""

    def sums(self) -> list[int]:
        """One for each block, see `checksum`; once it is done. Nothing where checksums are off."""


class BlockCopies(Protocol):
    """Copies between blocks of an arena that only the device reaches and slots in the host's memory, of a block each.

    They are done beside the device's steps, in no order with them: whoever begins one knows that no step writes there.
    """

    @property
    def address(self) -> int:
        """Where slot 0 begins; the others follow without a gap."""

    def to_slots(self, blocks: Sequence[int], slots: Sequence[int]) -> BlockCopy:
        """The i-th block is copied to the i-th slot."""

    def to_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        """The i-th slot is copied to the i-th block."""


class DirectBlocks(Protocol):
    """Blocks of an arena that only the device computes on, and that the link reads and writes without the host's.

    Where they lie is no address of the host's: nothing but the link, which was told so, may be given it.
    """

    def leaving(self, blocks: Sequence[int]) -> BlockCopy:
        """Written blocks are about to be put."""

    def arrived(self, blocks: Sequence[int]) -> BlockCopy:
        """Peers say that they have written these: from here on, what the device does sees it."""
