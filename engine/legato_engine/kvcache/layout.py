"""The layout of blocks in the arena. No torch: hand-offs and the scheduler import it, too."""

from dataclasses import dataclass
from math import prod

from legato_engine.kvcache.sequence_sizes import SequenceSizes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of a worker's KV arena, block-major: `[num_blocks, kv_heads, layers, 2, block_size, head_dim]`.

    Keys are index 0 of the fourth axis, values index 1. A block is one contiguous span of `block_bytes`, so that a
    hand-off needs one registration, one remote key and one put per run of neighbouring blocks. KV heads are its
    outermost axis: the part of a rank that computes some of them is contiguous, and blocks are the same for any number
    of ranks. A block belongs to one group of `layers`; the first group keeps all positions, each further one the last
    positions of a window.
    """

    layers: int
    kv_heads: int
    block_size: int  # tokens
    head_dim: int
    dtype: str  # a key of DTYPE_BYTES
    windows: tuple[int, ...] = ()
    further_bytes: int = 0  # of a block in further arenas: of a draft model, or of ranks with the same heads

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.kv_heads, self.layers, 2, self.block_size, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return prod(self.block_shape) * DTYPE_BYTES[self.dtype]

    @property
    def whole_bytes(self) -> int:
        """Bytes of a block in all arenas."""
        return self.block_bytes + self.further_bytes

    def blocks_for(self, tokens: int) -> int:
        """Number of blocks of one group that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def sizes(self, chunk_tokens: int) -> SequenceSizes:
        """Numbers of blocks that sequences take; steps compute at most `chunk_tokens` of a prompt."""
        return SequenceSizes(self.block_size, self.windows, chunk_tokens)

    def bytes_for(self, tokens: int, chunk_tokens: int) -> int:
        """Bytes, in all arenas, of the most blocks that a sequence of `tokens` takes."""
        return self.sizes(chunk_tokens).most(tokens) * self.whole_bytes

    def tokens_within(self, size: int, chunk_tokens: int) -> int:
        """Tokens of the longest sequence that `size` bytes hold."""
        return self.sizes(chunk_tokens).largest(size // self.whole_bytes)

    def __str__(self) -> str:
        """The value of `Hello.layout`: workers only exchange KV if it is equal."""
        shape = f"layers={self.layers} kv_heads={self.kv_heads} block={self.block_size} dim={self.head_dim}"
        windows = f" windows={','.join(map(str, self.windows))}" if self.windows else ""
        return f"head-major {shape} {self.dtype}{windows}"
