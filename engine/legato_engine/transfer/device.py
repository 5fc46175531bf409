"""When something that was begun on a device that works by itself is done: all that hand-offs need of it. No torch.

Nothing here blocks or wakes anybody: who waits asks again after `LOOK`.
"""

from typing import Protocol

LOOK = 0.001  # seconds between two looks at the device, while something waits for it


class DeviceEvent(Protocol):
    """A point in the device's work."""

    def done(self) -> bool:
        """Whether all that was begun there before it has ended. Never blocks; once true, it stays so."""
