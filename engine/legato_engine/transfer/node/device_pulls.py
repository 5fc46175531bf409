"""Copies from other workers' arenas in GPU memory, on a stream of their own."""

from collections.abc import Sequence

import torch

from legato_engine.transfer.blocks.runs import runs
from legato_engine.transfer.device import cuda
from legato_engine.transfer.device.cuda import CudaCopy, CudaSums
from legato_engine.transfer.device.ipc import DeviceArena, DeviceIpc
from legato_engine.transfer.node.interface import PeerArena


class DeviceCopy:
    """Implements `BlockCopy`. Keeps the other worker's arena open until the copy has ended."""

    def __init__(self, copy: CudaCopy, arena: DeviceArena) -> None:
        self._copy = copy
        self._arena: DeviceArena | None = arena

    def done(self) -> bool:
        if not self._copy.done():
            return False
        self._arena = None
        return True

    def sums(self) -> list[int]:
        return self._copy.sums()


class DevicePulls:
    """Implements `Pulls` for arenas in GPU memory. An arena in host memory is copied synchronously, for tests."""

    def __init__(self, arena: torch.Tensor, num_blocks: int, sums: CudaSums, ipc: DeviceIpc) -> None:
        """`arena` is this worker's: contiguous, with blocks of whole 64-bit words."""
        self._device = arena.device
        self._address = arena.data_ptr()
        self._block_bytes = arena.nbytes // num_blocks
        self._sums = sums
        self._ipc = ipc
        self._stream = cuda.stream(arena.device)

    def begin(self, arena: PeerArena, sources: Sequence[int], blocks: Sequence[int]) -> DeviceCopy:
        assert isinstance(arena, DeviceArena)
        size, stream = self._block_bytes, self._stream.cuda_stream if self._stream is not None else 0
        for source, block, count in runs(sources, blocks):
            self._ipc.copy(arena.address + source * size, self._address + block * size, count * size, stream)
        with cuda.current(self._stream):
            return DeviceCopy(cuda.summed(self._device, self._sums, blocks), arena)

    def close(self) -> None:
        pass
