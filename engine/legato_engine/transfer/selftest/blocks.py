"""Blocks for a self-test, in the same kind of memory as a worker's arena, filled and summed as in hand-offs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from legato_engine.transfer.blocks.checksum import MASK, ArenaMemory, weights

if TYPE_CHECKING:
    import torch

COUNT = 8
BLOCK_BYTES = 1 << 20
_WORD = 8


class TrialBlocks(Protocol):
    """`count` contiguous blocks of `block_bytes` from `address` on."""

    address: int
    count: int
    block_bytes: int

    def fill(self, seed: int) -> None:
        """Fills the blocks with bytes that follow from the seed; they are in memory when this returns."""

    def sums(self) -> list[int]:
        """The sum of each block, see `checksum`, including peers' writes until now."""


class HostBlocks:
    """Implements `TrialBlocks` in host memory."""

    count = COUNT
    block_bytes = BLOCK_BYTES

    def __init__(self) -> None:
        self._words = np.zeros((COUNT, BLOCK_BYTES // _WORD), np.uint64)
        self._memory = ArenaMemory(self._words, COUNT)
        self.address = self._memory.address

    def fill(self, seed: int) -> None:
        self._words[:] = _random(seed)

    def sums(self) -> list[int]:
        return self._memory.sums(range(COUNT))


class DeviceBlocks:
    """Implements `TrialBlocks` in GPU memory; the GPU fills and sums them."""

    count = COUNT
    block_bytes = BLOCK_BYTES

    def __init__(self, device: "torch.device", flush: Callable[[], None]) -> None:
        """`flush` makes peers' writes visible to the device."""
        import torch

        self._flush = flush
        self._words = torch.zeros(COUNT, BLOCK_BYTES // _WORD, dtype=torch.int64, device=device)
        self._weights = torch.from_numpy(weights(BLOCK_BYTES // _WORD).view("int64")).to(device)
        self.address = self._words.data_ptr()

    def fill(self, seed: int) -> None:
        import torch

        self._words.copy_(torch.from_numpy(_random(seed).view("int64")))
        if self._words.is_cuda:
            torch.cuda.synchronize(self._words.device)

    def sums(self) -> list[int]:
        self._flush()
        return [total & MASK for total in (self._words * self._weights).sum(1).tolist()]


def _random(seed: int) -> "np.ndarray[tuple[int, int], np.dtype[np.uint64]]":
    random = np.random.default_rng(seed)
    return random.integers(0, 1 << 64, (COUNT, BLOCK_BYTES // _WORD), dtype=np.uint64)
