"""Interfaces of an asynchronous device for hand-offs: events, and copies between its memory and the host's. No torch.

Nothing here blocks or wakes a thread: the agent polls every `POLL_INTERVAL` while it waits.
"""

from collections.abc import Sequence
from typing import Protocol

POLL_INTERVAL = 0.001  # seconds


class DeviceEvent(Protocol):
    """A point in the device's work."""

    def done(self) -> bool:
        """True if all earlier work has finished. Never blocks; never becomes False again."""


class BlockCopy(DeviceEvent, Protocol):
    """Copies that were started together, if any, followed by the sums of the blocks in device memory."""

    def sums(self) -> list[int]:
        """The sum of each block, see `checksum`; valid once done. Empty if checksums are off."""


class BlockCopies(Protocol):
    """Copies between blocks of an arena in device memory and slots in host memory, each of a block's size.

    They run concurrently with the device's steps: the caller makes sure that no step writes to the blocks.
    """

    @property
    def address(self) -> int:
        """Address of slot 0; the others follow without a gap."""

    def to_slots(self, blocks: Sequence[int], slots: Sequence[int]) -> BlockCopy:
        """Starts to copy the i-th block to the i-th slot."""

    def to_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        """Starts to copy the i-th slot to the i-th block."""


class DirectBlocks(Protocol):
    """Blocks of an arena in device memory that the link reads and writes directly.

    Their addresses are not host addresses: only a link that was opened for device memory may use them.
    """

    def sum_outgoing(self, blocks: Sequence[int]) -> BlockCopy:
        """Starts the sums of complete blocks before they are put."""

    def sum_incoming(self, blocks: Sequence[int]) -> BlockCopy:
        """Makes a peer's writes to these blocks visible to the device, and starts their sums."""
