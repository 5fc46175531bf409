"""Memory for blocks that the arena evicts: slots in the host's memory, and the moves from and to them."""

import ctypes
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

import torch

from legato_engine.errors import TooLittleMemory
from legato_engine.kvcache.moves import Move, MoveTime, Save, in_batches
from legato_engine.transfer.blocks.runs import runs
from legato_engine.transfer.device.cuda import pin, unpin


class TimeMark(Protocol):
    """A point in the device's work."""

    def done(self) -> bool: ...
    def since(self, earlier: Any) -> float:
        """Seconds from an earlier mark of its kind to this one; both are done."""


class HostMark:
    """Implements `TimeMark` where all work is done when its call returns."""

    def __init__(self) -> None:
        self._time = perf_counter()

    def done(self) -> bool:
        return True

    def since(self, earlier: "HostMark") -> float:
        return self._time - earlier._time


class GpuMark:
    """Implements `TimeMark` in the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def since(self, earlier: "GpuMark") -> float:
        return float(earlier._event.elapsed_time(self._event)) / 1e3


class HostSlots:
    """`count` slots, each of a block's size; pinned if the arena is in a GPU's memory, where moves are asynchronous.

    Moves are part of the stream of the steps: they start after all earlier steps, and later work waits for them.
    """

    def __init__(self, blocks: torch.Tensor, count: int) -> None:
        """`blocks` is an arena, [num_blocks, …]. Raises TooLittleMemory if the driver cannot pin the slots."""
        self.count = count
        self._device = blocks.device
        self._blocks = blocks.view(len(blocks), -1).view(torch.uint8)
        self._started: deque[tuple[type[Move], int, TimeMark, TimeMark]] = deque()
        if not count:
            self.slots = self._blocks[:0]
            return
        size = self._blocks.shape[1]
        memory = mmap.mmap(-1, count * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        self.slots = torch.frombuffer(memory, dtype=torch.uint8).view(count, size)
        if blocks.is_cuda:
            try:
                pin(self.slots, self._device)
            except RuntimeError as error:
                size = self.nbytes
                raise TooLittleMemory(f"hostKVMemory: the driver cannot pin {size:,} bytes: {error}") from None
            # Unmapping pinned memory would leave its address pinned to pages that are no longer mapped.
            weakref.finalize(self, unpin, self.slots, self._device).atexit = False

    @property
    def address(self) -> int:
        return self.slots.data_ptr()

    @property
    def nbytes(self) -> int:
        return self.slots.numel()

    def slot(self, index: int) -> memoryview:
        """The bytes of one slot, writable."""
        size = self.slots.shape[1]
        return memoryview((ctypes.c_ubyte * size).from_address(self.address + index * size)).cast("B")

    def move(self, moves: Sequence[Move]) -> None:
        """Starts these moves, in order; on the host, they are done when it returns."""
        for kind, sources, targets in in_batches(moves):
            began = self._mark()
            source, target = (self._blocks, self.slots) if kind is Save else (self.slots, self._blocks)
            for run in runs(sources, targets):
                piece = source[run.source : run.source + run.length]
                target[run.target : run.target + run.length].copy_(piece, non_blocking=True)
            self._started.append((kind, len(sources), began, self._mark()))

    def take_times(self) -> tuple[MoveTime, ...]:
        """Returns the durations of moves that are done and were not returned before."""
        times = list[MoveTime]()
        while self._started and self._started[0][-1].done():
            kind, blocks, began, ended = self._started.popleft()
            times.append(MoveTime(kind, blocks, ended.since(began)))
        return tuple(times)

    def _mark(self) -> TimeMark:
        return GpuMark(self._device) if self._device.type == "cuda" else HostMark()
