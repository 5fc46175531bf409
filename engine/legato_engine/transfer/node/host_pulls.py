"""Copies from other workers' arenas in host memory, in a thread: the core's loop never waits for memory."""

import ctypes
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.blocks.runs import runs
from legato_engine.transfer.node.interface import PeerArena
from legato_engine.transfer.node.memory_file import MappedFile


class HostCopy:
    """Implements `BlockCopy`."""

    def __init__(self, future: "Future[list[int]]") -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def sums(self) -> list[int]:
        return self._future.result()


class HostPulls:
    """Implements `Pulls` for arenas in host memory. Copies run in the order in which they begin."""

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._thread = ThreadPoolExecutor(1, "pull")

    def begin(self, arena: PeerArena, sources: Sequence[int], blocks: Sequence[int]) -> HostCopy:
        assert isinstance(arena, MappedFile)
        return HostCopy(self._thread.submit(self._copy, arena, tuple(sources), tuple(blocks)))

    def close(self) -> None:
        self._thread.shutdown()

    def _copy(self, arena: MappedFile, sources: Sequence[int], blocks: Sequence[int]) -> list[int]:
        size = self._memory.block_bytes
        for source, block, count in runs(sources, blocks):
            ctypes.memmove(self._memory.address_of(block), arena.address + source * size, count * size)
        return self._memory.sums(blocks)
