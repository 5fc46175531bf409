"""A CUDA device as hand-offs see it. Only the door to it: what waits for what is in `put_queue`, `staging` and
`receiver`.
"""

import mmap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

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
    """Implements `BlockCopy`."""

    def __init__(self, event: CudaEvent | None, parts: torch.Tensor) -> None:
        """`parts` int64 [blocks, any], in the host's memory once the event is done; rows add up to the sums."""
        self._event = event
        self._parts = parts

    def done(self) -> bool:
        return self._event is None or self._event.done()

    def sums(self) -> list[int]:
        return [total & MASK for total in self._parts.sum(1).tolist()]


class CudaCopies:
    """Implements `BlockCopies` with a stream for each direction, as devices have a copy engine for each.

    Sums are made on the device, at both ends of a hand-off: what changes on the way between device and host is found
    too. An arena in the host's memory is copied at once, by which all but the streams can be tested without a device.
    """

    def __init__(self, arena: torch.Tensor, num_blocks: int, slots: int, sum_blocks: SumBlocks | None) -> None:
        """`arena` is contiguous, blocks of whole 64-bit words; without `sum_blocks`, checksums are off. Takes and pins
        memory for the slots; raises RuntimeError where the device's driver does not pin it, and what `sum_blocks`
        does, which is tried."""
        self._device = arena.device
        self._blocks = arena.view(-1).view(torch.int64).view(num_blocks, -1)
        words = self._blocks.shape[1]
        # The caching allocator of pinned memory would take up to twice as much.
        memory = mmap.mmap(-1, slots * words * _WORD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._slots = torch.frombuffer(memory, dtype=torch.int64).view(slots, words)
        self.nbytes = len(memory)
        self._on_device = self._device.type == "cuda"
        if self._on_device:
            _pin(self._slots, self._device)
        self._out, self._in = (_stream(self._device) if self._on_device else None for _ in range(2))
        self._sum_blocks = sum_blocks
        if sum_blocks is not None:
            self._weights = torch.from_numpy(weights(words).view("int64")).to(self._device)
            with _current(self._out):
                self._parts([0])  # a kernel is compiled now, while no hand-off waits for it

    @property
    def address(self) -> int:
        return self._slots.data_ptr()

    def to_slots(self, blocks: Sequence[int], slots: Sequence[int]) -> CudaCopy:
        with _current(self._out):
            for block, slot, count in runs(blocks, slots):
                self._slots[slot : slot + count].copy_(self._blocks[block : block + count], non_blocking=True)
            return self._summed(blocks)

    def to_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> CudaCopy:
        with _current(self._in):
            for slot, block, count in runs(slots, blocks):
                self._blocks[block : block + count].copy_(self._slots[slot : slot + count], non_blocking=True)
            return self._summed(blocks)

    def _summed(self, blocks: Sequence[int]) -> CudaCopy:
        """After all that was begun on the current stream."""
        parts = self._parts(blocks) if self._sum_blocks and blocks else torch.empty(0, 1, dtype=torch.int64)
        return CudaCopy(CudaEvent(self._device) if self._on_device else None, parts)

    def _parts(self, blocks: Sequence[int]) -> torch.Tensor:
        """Of the sums of these blocks, at least one; in the host's memory when the current stream has come so far."""
        assert self._sum_blocks is not None
        ids = torch.tensor(blocks, dtype=torch.int32, pin_memory=self._on_device)
        found = self._sum_blocks(self._blocks, ids.to(self._device, non_blocking=True), self._weights)
        parts = torch.empty(found.shape, dtype=torch.int64, pin_memory=self._on_device)
        return parts.copy_(found, non_blocking=True)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _current(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def _pin(memory: torch.Tensor, device: torch.device) -> None:
    """Until the process ends, as hand-offs are."""
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)))
