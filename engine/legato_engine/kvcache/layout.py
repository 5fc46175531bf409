"""The layout of blocks in the arena. No torch: hand-offs and the scheduler import it, too."""

from dataclasses import dataclass
from math import prod

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of a worker's KV arena, block-major: `[num_blocks, layers, 2, kv_heads, block_size, head_dim]`.

    Keys are index 0 of the third axis, values index 1. A block is one contiguous span of `block_bytes`, so that a
    hand-off needs one registration, one remote key and one put per run of neighbouring blocks.
    """

    layers: int
    kv_heads: int
    block_size: int  # tokens
    head_dim: int
    dtype: str  # a key of DTYPE_BYTES

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.layers, 2, self.kv_heads, self.block_size, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return prod(self.block_shape) * DTYPE_BYTES[self.dtype]

    def blocks_for(self, tokens: int) -> int:
        """Number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def __str__(self) -> str:
        """The value of `Hello.layout`: workers only exchange KV if it is equal."""
        shape = f"layers={self.layers} kv_heads={self.kv_heads} block={self.block_size} dim={self.head_dim}"
        return f"block-major {shape} {self.dtype}"
