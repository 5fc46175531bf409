"""A CUDA device as hand-offs see it. Only the door to it: what waits for what is in `put_queue`, `staging` and
`receiver`.
"""

import mmap
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch

from legato_engine.transfer.checksum import MASK, weights
from legato_engine.transfer.runs import runs

# Of `kernels.block_sums`: words of all blocks, ids of some and weights → parts of the sums, which are then under way.
SumBlocks: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_WORD = 8


class CudaEvent:
    """Implements `DeviceEvent`: all that was begun on the current stream of `device` until now."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]


class CudaCopy:
    """Implements `BlockCopy`, also of blocks that are only summed up."""

    def __init__(self, event: CudaEvent | None, parts: torch.Tensor) -> None:
        """`parts` int64 [blocks, any], in the host's memory once the event is done; rows add up to the sums."""
        self._event = event
        self._parts = parts

    def done(self) -> bool:
        return self._event is None or self._event.done()

    def sums(self) -> list[int]:
        return [total & MASK for total in self._parts.sum(1).tolist()]


class CudaSums:
    """Sums of an arena's blocks, made on the device; see `checksum`."""

    def __init__(self, arena: torch.Tensor, num_blocks: int, sum_blocks: SumBlocks) -> None:
        """`arena` is contiguous, blocks of whole 64-bit words. Raises what `sum_blocks` does, which is tried: a kernel
        is compiled now, while no hand-off waits for it."""
        self._words = words_of(arena, num_blocks)
        self._sum_blocks = sum_blocks
        self._weights = torch.from_numpy(weights(self._words.shape[1]).view("int64")).to(arena.device)
        self.parts([0])

    def parts(self, blocks: Sequence[int]) -> torch.Tensor:
        """Of the sums of these blocks, at least one; in the host's memory when the current stream has come so far."""
        on_device = self._words.is_cuda
        ids = torch.tensor(blocks, dtype=torch.int32, pin_memory=on_device)
        found = self._sum_blocks(self._words, ids.to(self._words.device, non_blocking=True), self._weights)
        parts = torch.empty(found.shape, dtype=torch.int64, pin_memory=on_device)
        return parts.copy_(found, non_blocking=True)


class CudaCopies:
    """Implements `BlockCopies` with a stream for each direction, as devices have a copy engine for each.

    Sums are made on the device, at both ends of a hand-off: what changes on the way between device and host is found
    too. An arena in the host's memory is copied at once, by which all but the streams can be tested without a device.
    """

    def __init__(self, arena: torch.Tensor, num_blocks: int, slots: int, sums: CudaSums | None) -> None:
        """`arena` is contiguous, blocks of whole 64-bit words; without `sums`, checksums are off. Takes and pins memory
        for the slots; raises RuntimeError where the device's driver does not pin it."""
        self._device = arena.device
        self._blocks = words_of(arena, num_blocks)
        words = self._blocks.shape[1]
        # The caching allocator of pinned memory would take up to twice as much.
        memory = mmap.mmap(-1, slots * words * _WORD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._slots = torch.frombuffer(memory, dtype=torch.int64).view(slots, words)
        self.nbytes = len(memory)
        if arena.is_cuda:
            _pin(self._slots, self._device)
            # Memory that is unmapped while it is pinned leaves its address pinned to pages that nobody sees any more.
            weakref.finalize(self, _unpin, self._slots, self._device).atexit = False
        self._out, self._in = _stream(self._device), _stream(self._device)
        self._sums = sums

    @property
    def address(self) -> int:
        return self._slots.data_ptr()

    def to_slots(self, blocks: Sequence[int], slots: Sequence[int]) -> CudaCopy:
        with _current(self._out):
            for block, slot, count in runs(blocks, slots):
                self._slots[slot : slot + count].copy_(self._blocks[block : block + count], non_blocking=True)
            return _summed(self._device, self._sums, blocks)

    def to_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> CudaCopy:
        with _current(self._in):
            for slot, block, count in runs(slots, blocks):
                self._blocks[block : block + count].copy_(self._slots[slot : slot + count], non_blocking=True)
            return _summed(self._device, self._sums, blocks)


class CudaDirect:
    """Implements `DirectBlocks`, with a stream for each direction."""

    def __init__(self, device: torch.device, sums: CudaSums | None, flush: Callable[[], None]) -> None:
        """`flush` makes what peers have written visible to the device; without `sums`, checksums are off."""
        self._device = device
        self._sums = sums
        self._flush = flush
        self._out, self._in = _stream(device), _stream(device)

    def leaving(self, blocks: Sequence[int]) -> CudaCopy:
        with _current(self._out):
            return _summed(self._device, self._sums, blocks)

    def arrived(self, blocks: Sequence[int]) -> CudaCopy:
        self._flush()
        with _current(self._in):
            return _summed(self._device, self._sums, blocks)


def words_of(arena: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Blocks as their 64-bit words, [num_blocks, words]."""
    return arena.view(-1).view(torch.int64).view(num_blocks, -1)


def segments(device: torch.device) -> list[dict[str, Any]]:
    """What torch's allocator has taken of a device's memory, as `gpudirect.check_plain` reads it."""
    found: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return [each for each in found if each["device"] == device.index]


def allocator() -> str:
    """The name of torch's allocator of device memory."""
    return torch.cuda.get_allocator_backend()


def _summed(device: torch.device, sums: CudaSums | None, blocks: Sequence[int]) -> CudaCopy:
    """After all that was begun on the current stream."""
    parts = sums.parts(blocks) if sums is not None and blocks else torch.empty(0, 1, dtype=torch.int64)
    return CudaCopy(CudaEvent(device) if device.type == "cuda" else None, parts)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _current(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def _pin(memory: torch.Tensor, device: torch.device) -> None:
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)))


def _unpin(memory: torch.Tensor, device: torch.device) -> None:
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostUnregister(memory.data_ptr())))
