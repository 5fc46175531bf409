"""A step of attention: by Triton's kernels, and as written down."""

from collections.abc import Sequence
from typing import Any

import torch

from legato_engine.backends.kv_groups import of_layer
from legato_engine.kernels.gpu.attention import attend as attention
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.reference import attention as naive
from legato_engine.kernels.reference import float8


class Step:
    """Rows (prefix, query tokens) in the second of two layers of an arena, which holds NaN wherever no row has written.
    There may be more rows and tokens, as padding."""

    def __init__(
        self,
        rows: Sequence[tuple[int, int]],
        dtype: torch.dtype = torch.float32,
        *,
        dim: int = 32,
        group: int = 2,
        kv_heads: int = 2,
        block: int = 16,
        window: int | None = None,
        padding: tuple[int, int] = (0, 0),
        seed: int = 0,
        device: Any = "cpu",
        kv: torch.dtype | None = None,
        sinks: bool = False,
    ) -> None:
        """`kv` is torch.uint8, or torch.float8_e4m3fn where the chip converts it, for an arena of e4m3."""
        torch.manual_seed(seed)
        self.rows, self.window = rows, window
        self._sizes, self._device = attention.AttentionSizes(group * kv_heads, kv_heads, dim, block), device
        counts = [-(-(prefix + count) // block) for prefix, count in rows]
        ids = torch.randperm(sum(counts) + 3).tolist()
        shape = (len(ids), kv_heads, 2, 2, block, dim)
        self.layer = of_layer(torch.full(shape, torch.nan, dtype=dtype, device=device), 1)
        tables = torch.full((len(rows) + padding[0], max(counts) + 1), -1, dtype=torch.int32)
        for table, (prefix, count) in zip(tables, rows, strict=False):
            kept = 0 if window is None else max(0, prefix - window + 1)  # before it, blocks may be another's already
            for index in range(-(-(prefix + count) // block)):
                table[index] = ids.pop()
                written = slice(max(0, kept - index * block), max(0, prefix + count - index * block))
                part = self.layer[table[index], :, :, written]
                part.copy_(torch.randn(part.shape, device=device))
        self.tables, tokens = tables.to(device), [count for _, count in rows]
        self.starts = torch.tensor([0, *tokens, *[0] * padding[0]]).cumsum(0).int().to(device)
        self.lengths = torch.tensor([*map(sum, rows), *[0] * padding[0]]).int().to(device)
        self.tokens = sum(tokens) + padding[1]
        self.scales = None
        if kv is not None:
            self.scales = torch.rand(2, kv_heads, device=device) + 0.3
            codes = float8.encode(self.layer.cpu(), self.scales.cpu()[:, :, None, None]).to(device)
            self.layer = torch.stack((codes, codes), 1)[:, 1].view(kv)
        qkv = torch.randn(self.tokens, (group + 2) * kv_heads, dim, device=device).to(dtype)
        qkv[sum(tokens) :] = torch.nan
        self.queries = qkv[:, : group * kv_heads]
        self.sinks = torch.randn(group * kv_heads, device=device) * 3 if sinks else None
        self.out = torch.empty_like(self.queries)

    def work(self, processors: int = 4, more: int = 0) -> attention.Work:
        return attention.Work(len(self.lengths) + more, self.tokens + more, self._sizes, self._device, processors)

    def run(self, decode: Configuration, prefill: Configuration, work: attention.Work | None = None) -> torch.Tensor:
        """Into `out`, which has 7 wherever nothing is written."""
        work = work or self.work()
        for buffer, value in ((work.partials, torch.nan), (work.stats, torch.nan), (self.out, 7)):
            buffer.fill_(value)
        prompts = any(count > attention.DECODE_QUERIES for _, count in self.rows)
        attention.plan(self.starts, self.lengths, work, self.window, decode, prefill)
        attention.attend(
            self.queries, self.layer, self.starts, self.lengths, self.tables, work, self.window, self.out, decode,
            prefill, prompts, self.scales, self.sinks,
        )  # fmt: skip
        return self.out

    def expected(self) -> torch.Tensor:
        queries, layer, scales = self.queries.cpu(), self.layer.cpu(), None
        sinks = None if self.sinks is None else self.sinks.cpu()
        if self.scales is not None:
            layer, scales = layer.view(torch.uint8), self.scales.cpu()
        out, first = torch.full_like(queries, 7), 0
        for (prefix, count), table in zip(self.rows, self.tables.tolist(), strict=False):
            own = slice(first, first := first + count)
            out[own] = naive.attention(queries[own], layer, table, prefix, self.window, scales, sinks)
        return out
