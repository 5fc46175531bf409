"""Ways to memory that files cannot be read into: through buffers of the host."""

from collections.abc import Callable
from typing import Protocol

import torch

PIECE = 8 << 20  # bytes read at a time

Fill = Callable[[memoryview], None]  # fills a buffer with the bytes of a piece


class Lane(Protocol):
    """Copies pieces to a device. One thread at a time uses it."""

    def begin(self) -> None:
        """Later writes follow everything that the calling thread has started on the device."""
        ...

    def write(self, fill: Fill, dtype: torch.dtype, out: torch.Tensor) -> None:
        """Writes a piece of at most PIECE bytes, whose numbers have this type, to `out`, which may have another."""
        ...

    def finish(self) -> None:
        """Waits until everything is written."""
        ...


class CudaLane:
    """Implements `Lane` with a stream of its own: while one buffer is copied, the other is filled."""

    def __init__(self, place: torch.device) -> None:
        self._stream = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
        self._buffers = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in self._buffers]  # type: ignore[no-untyped-call]
        self._next = 0

    def begin(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))

    def write(self, fill: Fill, dtype: torch.dtype, out: torch.Tensor) -> None:
        index, self._next = self._next, 1 - self._next
        self._copied[index].synchronize()
        buffer = self._buffers[index][: out.numel() * dtype.itemsize]
        fill(buffer.numpy().data)
        with torch.cuda.stream(self._stream):
            out.copy_(buffer.view(dtype), non_blocking=True)  # another type is converted on the device
            self._copied[index].record(self._stream)

    def finish(self) -> None:
        self._stream.synchronize()
