"""Access of hand-offs to a CUDA device. The order of operations is in `put_queue`, `staging` and `receiver`."""

import mmap
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch

from legato_engine.transfer.blocks.checksum import MASK, weights
from legato_engine.transfer.blocks.runs import runs

# A function of `kernels.block_sums`: words of all blocks, ids of some, weights → partial sums, computed asynchronously.
SumBlocks: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_WORD = 8
_PORTABLE = 1  # cudaHostRegisterPortable: in the contexts of all devices


class CudaEvent:
    """Implements `DeviceEvent`: all work started so far on the current stream of `device`."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]


class CudaCopy:
    """Implements `BlockCopy`; also for blocks that are only summed."""

    def __init__(self, event: CudaEvent | None, parts: torch.Tensor) -> None:
        """`parts` int64 [blocks, any] are in host memory once the event is done; rows add up to the sums."""
        self._event = event
        self._parts = parts

    def done(self) -> bool:
        return self._event is None or self._event.done()

    def sums(self) -> list[int]:
        return [total & MASK for total in self._parts.sum(1).tolist()]


class CudaSums:
    """Sums of an arena's blocks, computed on the device; see `checksum`."""

    def __init__(self, arena: torch.Tensor, num_blocks: int, sum_blocks: SumBlocks, first: int = 0) -> None:
        """`arena` is contiguous, with blocks, or parts of blocks that begin at word `first`, of whole 64-bit words.

        Calls `sum_blocks` once, so that a kernel is compiled before a hand-off waits for it, and raises its errors.
        """
        self._words = words_of(arena, num_blocks)
        self.sum_blocks = sum_blocks
        own = weights(first + self._words.shape[1])[first:]
        self._weights = torch.from_numpy(own.view("int64")).to(arena.device)
        self.parts([0])

    def parts(self, blocks: Sequence[int]) -> torch.Tensor:
        """Partial sums of these blocks (at least one), in host memory once the current stream has computed them."""
        on_device = self._words.is_cuda
        ids = torch.tensor(blocks, dtype=torch.int32, pin_memory=on_device)
        sums = self.sum_blocks(self._words, ids.to(self._words.device, non_blocking=True), self._weights)
        parts = torch.empty(sums.shape, dtype=torch.int64, pin_memory=on_device)
        return parts.copy_(sums, non_blocking=True)


class CudaCopies:
    """Implements `BlockCopies` with a stream for each direction, as devices have a copy engine for each.

    Both ends of a hand-off compute sums on the device, so that corruption between device and host is noticed, too. An
    arena in host memory is copied synchronously: everything except the streams can be tested without a device.
    """

    def __init__(self, arena: torch.Tensor, num_blocks: int, slots: int, sums: CudaSums | None) -> None:
        """`arena` is contiguous, with blocks of whole 64-bit words; without `sums`, checksums are off.

        Allocates and pins memory for the slots; raises RuntimeError if the driver cannot pin it.
        """
        self._device = arena.device
        self._blocks = words_of(arena, num_blocks)
        words = self._blocks.shape[1]
        self._slots = slots_of(self, slots, words, self._device)
        self.nbytes = self._slots.nbytes
        self._out, self._in = stream(self._device), stream(self._device)
        self._sums = sums

    @property
    def address(self) -> int:
        return self._slots.data_ptr()

    def to_slots(self, blocks: Sequence[int], slots: Sequence[int]) -> CudaCopy:
        with current(self._out):
            for block, slot, count in runs(blocks, slots):
                self._slots[slot : slot + count].copy_(self._blocks[block : block + count], non_blocking=True)
            return summed(self._device, self._sums, blocks)

    def to_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> CudaCopy:
        with current(self._in):
            for slot, block, count in runs(slots, blocks):
                self._blocks[block : block + count].copy_(self._slots[slot : slot + count], non_blocking=True)
            return summed(self._device, self._sums, blocks)


class CudaDirect:
    """Implements `DirectBlocks`, with a stream for each direction."""

    def __init__(self, device: torch.device, sums: CudaSums | None, flush: Callable[[], None]) -> None:
        """`flush` makes peers' writes visible to the device; without `sums`, checksums are off."""
        self._device = device
        self._sums = sums
        self._flush = flush
        self._out, self._in = stream(device), stream(device)

    def sum_outgoing(self, blocks: Sequence[int]) -> CudaCopy:
        with current(self._out):
            return summed(self._device, self._sums, blocks)

    def sum_incoming(self, blocks: Sequence[int]) -> CudaCopy:
        self._flush()
        with current(self._in):
            return summed(self._device, self._sums, blocks)


def words_of(arena: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Blocks as their 64-bit words, [num_blocks, words]."""
    return arena.view(-1).view(torch.int64).view(num_blocks, -1)


def segments(device: torch.device) -> list[dict[str, Any]]:
    """The device memory that torch's allocator has taken, for `gpudirect.check_plain`."""
    snapshot: list[dict[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return [each for each in snapshot if each["device"] == device.index]


def allocator() -> str:
    """The name of torch's allocator of device memory."""
    return torch.cuda.get_allocator_backend()


def summed(device: torch.device, sums: CudaSums | None, blocks: Sequence[int]) -> CudaCopy:
    """Starts the sums on the current stream."""
    parts = sums.parts(blocks) if sums is not None and blocks else torch.empty(0, 1, dtype=torch.int64)
    return CudaCopy(CudaEvent(device) if device.type == "cuda" else None, parts)


def slots_of(owner: object, slots: int, words: int, device: torch.device) -> torch.Tensor:
    """Memory of the host, int64 [slots, words], pinned for a GPU as long as `owner` exists. Raises RuntimeError."""
    # Not torch's allocator of pinned memory, which would take up to twice as much.
    memory = mmap.mmap(-1, slots * words * _WORD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made = torch.frombuffer(memory, dtype=torch.int64).view(slots, words)
    if device.type == "cuda":
        pin(made, device)
        # Unmapping pinned memory would leave its address pinned to pages that are no longer mapped.
        weakref.finalize(owner, unpin, made, device).atexit = False
    return made


def stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def current(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def pin(memory: torch.Tensor, device: torch.device) -> None:
    """Pins the host's memory for copies of all devices. Raises RuntimeError if the driver cannot."""
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)))


def unpin(memory: torch.Tensor, device: torch.device) -> None:
    """Ends `pin`, before the memory is unmapped."""
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostUnregister(memory.data_ptr())))
