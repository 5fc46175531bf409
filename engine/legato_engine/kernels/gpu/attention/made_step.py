"""Attention of a step that is made up, for benchmarks and for tuning: KV of random numbers in shuffled blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from legato_engine.kernels.gpu.attention import attend as attention
from legato_engine.kernels.gpu.configurations import Configuration

LAYERS = 2
HEAD_MAJOR = (0, 3, 1, 2, 4)  # where blocks, layers, keys or values, KV heads, and places lie in memory


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model and of its KV cache."""

    head_dim: int
    group: int  # query heads for each KV head
    kv_heads: int
    block_size: int
    dtype: torch.dtype
    device: torch.device
    processors: int
    e4m3: bool = False  # KV; on a chip that converts it

    @property
    def held(self) -> torch.dtype:
        """The type of the arena."""
        return torch.float8_e4m3fn if self.e4m3 else self.dtype

    @property
    def named(self) -> dict[str, int]:
        """As tables of configurations name it."""
        bits = 8 * self.held.itemsize
        return {"head_dim": self.head_dim, "block_size": self.block_size, "group": self.group, "kv_bits": bits}

    def random(self, *sizes: int) -> torch.Tensor:
        return torch.randn(sizes, dtype=self.dtype, device=self.device)


class MadeStep:
    """Rows (tokens before, tokens), planned, over one layer of an arena whose axes lie in memory in some order."""

    def __init__(
        self, shape: Shape, rows: Sequence[tuple[int, int]], decode: Configuration, prefill: Configuration,
        order: Sequence[int] = HEAD_MAJOR,
    ) -> None:  # fmt: skip
        block, device, heads = shape.block_size, shape.device, shape.group * shape.kv_heads
        longest = max(-(-sum(row) // block) for row in rows)
        self.layer = _layer(shape, longest * len(rows), order)
        self.tables = torch.randperm(longest * len(rows), device=device).int().view(len(rows), longest)
        self.starts = torch.tensor([0, *[count for _, count in rows]], device=device).cumsum(0).int()
        self.lengths = torch.tensor([sum(row) for row in rows], device=device).int()
        tokens = sum(count for _, count in rows)
        self.queries = shape.random(tokens, heads + 2 * shape.kv_heads, shape.head_dim)[:, :heads]
        self.scales = torch.ones(2, shape.kv_heads, device=device) if shape.e4m3 else None
        self.out = torch.zeros(tokens, heads, shape.head_dim, dtype=shape.dtype, device=device)
        self.chosen = decode, prefill
        self.prompts = any(count > attention.DECODE_QUERIES for _, count in rows)
        sizes = attention.AttentionSizes(heads, shape.kv_heads, shape.head_dim, block)
        self.work = attention.Work(len(rows), tokens, sizes, device, shape.processors)
        attention.plan(self.starts, self.lengths, self.work, None, *self.chosen)

    def attend(self) -> None:
        """Into `out`."""
        attention.attend(
            self.queries, self.layer, self.starts, self.lengths, self.tables, self.work, None, self.out, *self.chosen,
            self.prompts, self.scales,
        )  # fmt: skip


def _layer(shape: Shape, blocks: int, order: Sequence[int]) -> torch.Tensor:
    """[blocks, 2, kv_heads, block, head_dim]"""
    sizes = (blocks, LAYERS, 2, shape.kv_heads, shape.block_size)
    memory = shape.random(*(sizes[axis] for axis in order), shape.head_dim).to(shape.held)
    return memory.permute(*(order.index(axis) for axis in range(5)), 5)[:, 0]
