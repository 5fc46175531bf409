"""Arenas of a device that works late: one that the link does not reach, with a few slots in the host's memory, and one
that it does."""

import torch

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.device.staging import Staging
from legato_engine.transfer.fakes.late_device import LateCopies, LateDirect, LateStream

UNUSED = 251  # what slots hold that nothing was copied to or written to


class StagedArena:
    """`memory` is what a link registers."""

    direct = None

    def __init__(self, memory, time, random, landing, ring, delay):
        slots = torch.full(((landing + ring) * memory.block_bytes,), UNUSED, dtype=torch.uint8)
        self.memory = ArenaMemory(slots, landing + ring)
        self._streams = [LateStream(time, random, delay) for _ in range(2)]
        self.staging = Staging.over(LateCopies(memory, self.memory, *self._streams), landing, ring)

    @property
    def idle(self):
        return all(stream.idle for stream in self._streams)

    def check_free(self):
        """Raises AssertionError for a slot that nobody gave back."""
        for slots in (self.staging.landing, self.staging.ring):
            assert slots.free == slots.count, f"{slots.count - slots.free} of {slots.count} slots are lost"


class DirectArena:
    """In the place of a `StagedArena`."""

    staging = None

    def __init__(self, memory, time, random, delay):
        self.memory = memory
        self._streams = [LateStream(time, random, delay) for _ in range(2)]
        self.direct = LateDirect(memory, *self._streams)

    @property
    def idle(self):
        return all(stream.idle for stream in self._streams)

    def check_free(self):
        """There are no slots."""
