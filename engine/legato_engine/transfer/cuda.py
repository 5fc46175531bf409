"""A CUDA device as hand-offs see it. Only the door to it: what waits for what is in `put_queue`, `staging` and
`receiver`.
"""

import mmap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from legato_engine.transfer.checksum import MASK, weights

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

    def __init__(self, event: CudaEvent | None, sums: torch.Tensor) -> None:
        self._event = event
        self._sums = sums

    def done(self) -> bool:
        return self._event is None or self._event.done()

    def sums(self) -> list[int]:
        return [total & MASK for total in self._sums.tolist()]


class CudaCopies:
    """Implements `BlockCopies` with a stream for each direction, as devices have a copy engine for each.

    Sums are made on the device, at both ends of a hand-off: what changes on the way between device and host is found
    too. An arena in the host's memory is copied at once, by which all but the streams can be tested without a device.
    """

    def __init__(self, arena: torch.Tensor, num_blocks: int, slots: int, checksum: bool) -> None:
        """`arena` is contiguous, blocks of whole 64-bit words. Takes and pins memory for the slots; raises RuntimeError
        where the device's driver does not pin it."""
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
        self._weights = torch.from_numpy(weights(words).view("int64")).to(self._device) if checksum else None
        self._out, self._in = (_stream(self._device) if self._on_device else None for _ in range(2))

    @property
    def address(self) -> int:
        return self._slots.data_ptr()

    def to_slots(self, blocks: Sequence[int], slots: Sequence[int]) -> CudaCopy:
        moves = [(self._slots[slot], self._blocks[block]) for block, slot in zip(blocks, slots, strict=True)]
        return self._begin(self._out, moves, blocks)

    def to_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> CudaCopy:
        moves = [(self._blocks[block], self._slots[slot]) for block, slot in zip(blocks, slots, strict=True)]
        return self._begin(self._in, moves, blocks)

    def _begin(
        self,
        stream: torch.cuda.Stream | None,
        moves: Iterable[tuple[torch.Tensor, torch.Tensor]],
        blocks: Sequence[int],
    ) -> CudaCopy:
        """Copies to the first of each pair from the second, then sums up the blocks."""
        with _current(stream):
            for target, source in moves:
                target.copy_(source, non_blocking=True)
            sums = torch.empty(0, dtype=torch.int64)
            if self._weights is not None and blocks:
                found = torch.stack([(self._blocks[block] * self._weights).sum() for block in blocks])
                sums = torch.empty(len(blocks), dtype=torch.int64, pin_memory=self._on_device)
                sums.copy_(found, non_blocking=True)
            return CudaCopy(CudaEvent(self._device) if self._on_device else None, sums)


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _current(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return torch.cuda.stream(stream) if stream is not None else nullcontext()


def _pin(memory: torch.Tensor, device: torch.device) -> None:
    """Until the process ends, as hand-offs are."""
    with torch.cuda.device(device):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)))
