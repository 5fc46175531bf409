"""Checksums of KV blocks: a sum over the bytes, bound to the tokens that the block should hold.

The sum of a block is Σ word_i · weight_i modulo 2^64 over its 64-bit words, with fixed odd weights. Every single
changed word changes it, swapped words change it, and terms can be added in any order, so any device can compute it in
parallel. A label of (room, index, hash) is added, so that correct bytes in the wrong place, or for the wrong tokens, do
not pass.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import torch

Words: TypeAlias = "np.ndarray[Any, Any]"

_WORD = 8
MASK = (1 << 64) - 1  # sums are unsigned 64-bit integers
_SEED = 0x1E6A70


def index_of(group: int, number: int) -> int:
    """The index of a sequence's block `number` in a group of layers, for `label`."""
    return group << 40 | number


def label(room: int, index: int, content: bytes) -> int:
    """64 bits that identify block `index` of `room` with the tokens whose chained hash is `content`."""
    digest = blake2b(content, digest_size=8, key=room.to_bytes(8, "little") + index.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


def bind(total: int, room: int, index: int, content: bytes) -> int:
    """The checksum in `Written` for a block whose bytes sum up to `total`."""
    return (total + label(room, index, content)) & MASK


def weights(words: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    """The odd multipliers, the same in every process."""
    return np.random.Generator(np.random.PCG64(_SEED)).integers(0, 1 << 64, words, dtype=np.uint64) | np.uint64(1)


class ArenaMemory:
    """A worker's KV arena: `num_blocks` contiguous spans of `block_bytes`."""

    def __init__(self, arena: "torch.Tensor | Words", num_blocks: int, parts: int = 1) -> None:
        """`arena` is contiguous, on any device; a block's bytes are a multiple of 8. In device memory, it may have
        one of several `parts` of each block. Raises ValueError."""
        contiguous = arena.flags.c_contiguous if isinstance(arena, np.ndarray) else arena.is_contiguous()
        size = int(arena.nbytes) * parts
        if not contiguous or size % num_blocks or size // num_blocks % _WORD:
            raise ValueError(f"an arena of {size} bytes does not hold {num_blocks} blocks of whole 64-bit words")
        self._arena = arena  # keeps the memory alive
        self.address = arena.ctypes.data if isinstance(arena, np.ndarray) else arena.data_ptr()
        self.num_blocks = num_blocks
        self.block_bytes = size // num_blocks
        self._words: Words | None = None
        if isinstance(arena, np.ndarray):
            self._words = arena.reshape(-1).view(np.uint64).reshape(num_blocks, -1)
        elif arena.device.type == "cpu":
            self._words = _signed(arena).numpy().view(np.uint64).reshape(num_blocks, -1)
        self._weights = weights(self.block_bytes // _WORD)

    @property
    def on_host(self) -> bool:
        """True if the arena is in host memory, and `address` is a host address."""
        return self._words is not None

    def address_of(self, block: int) -> int:
        return self.address + block * self.block_bytes

    @property
    def length(self) -> int:
        return self.num_blocks * self.block_bytes

    def sums(self, blocks: Sequence[int]) -> list[int]:
        """The sum of each block's current bytes. Raises ValueError for device memory."""
        if self._words is None:
            raise ValueError("the arena is not in host memory")
        return [int(np.einsum("i,i", self._words[block], self._weights)) for block in blocks]


def _signed(arena: "torch.Tensor") -> "torch.Tensor":
    """The arena as 64-bit words: numpy does not support every dtype of blocks."""
    import torch  # loaded already by the creator of the tensor

    return arena.view(-1).view(torch.int64)
