"""Attention of ragged steps: decoding rows, prompts and both, whose blocks lie anywhere in an arena."""

import torch
from places import Place, over

from legato_engine.kernels.attention import naive
from legato_engine.kernels.attention import triton as attention
from legato_engine.kernels.configurations import choose

MIXED = ((0, 1), (37, 1), (100, 8), (0, 9), (63, 1), (21, 40))  # tokens before, tokens of this step
DECODING = ((99, 1), (499, 1), (0, 1), (62, 5))
SMALL = {MIXED: ((0, 1), (18, 1), (3, 9)), DECODING: ((40, 1), (0, 1), (16, 3))}


class Step:
    """Queries and KV of rows, in the second of two layers; unused memory is NaN."""

    def __init__(self, place: Place, dtype: torch.dtype, rows, dim: int, group: int, kv_heads: int, block: int) -> None:
        self.place, self.rows, self.kv_heads, self.group, self.dim, self.block = (
            place,
            rows,
            kv_heads,
            group,
            dim,
            block,
        )
        counts = [-(-(before + count) // block) for before, count in rows]
        arena = torch.full((sum(counts) + 1, 2, 2, kv_heads, block, dim), torch.nan, dtype=dtype, device=place.device)
        ids = iter(torch.randperm(sum(counts)).tolist())
        self.lists = [[next(ids) for _ in range(count)] for count in counts]
        self.layer = arena[:, 1]
        for (before, count), blocks in zip(rows, self.lists, strict=True):
            for index, block_id in enumerate(blocks):
                filled = min(block, before + count - index * block)
                self.layer[block_id, :, :, :filled] = place.random(2, kv_heads, filled, dim, dtype=dtype)
        longest = max(counts)
        self.tables = place.ints([blocks + [-1] * (longest - len(blocks)) for blocks in self.lists])
        self.starts = place.ints([0, *torch.tensor([count for _, count in rows]).cumsum(0).tolist()])
        self.lengths = place.ints([before + count for before, count in rows])
        self.tokens, heads = sum(count for _, count in rows), group * kv_heads
        self.queries = place.random(self.tokens, heads + 2 * kv_heads, dim, dtype=dtype)[:, :heads]
        self.out = torch.zeros_like(self.queries)
        shape = {"head_dim": dim, "block_size": block, "group": group}
        self.chosen = [choose(f"{name}_attention", shape, place.chip) for name in ("decode", "prefill")]
        self.work = attention.Work(
            len(rows), self.tokens, heads, kv_heads, dim, block, place.device, place.processors
        )  # fmt: skip

    def run(self, window: int | None) -> torch.Tensor:
        prompts = any(count > attention.DECODE_QUERIES for _, count in self.rows)
        attention.plan(self.starts, self.lengths, self.work, window, *self.chosen)
        attention.attend(
            self.queries, self.layer, self.starts, self.lengths, self.tables, self.work, window, self.out, *self.chosen,
            prompts,
        )  # fmt: skip
        return self.out

    def check(self, window: int | None) -> None:
        found, first = self.run(window).cpu(), 0
        queries, layer = self.queries.cpu(), self.layer.cpu()
        for (before, count), blocks in zip(self.rows, self.lists, strict=True):
            mine = slice(first, first + count)
            self.place.close(found[mine], naive.attention(queries[mine], layer, blocks, before, window))
            first += count


@over(dim=(64, 128, 256, 80), group=(4, 1, 7, 8), block=(16, 64))
def test_mixed_steps(place: Place, dtype: torch.dtype, dim: int, group: int, block: int) -> None:
    rows = SMALL[MIXED] if place.small else MIXED
    Step(place, dtype, rows, 32 if place.small else dim, group, 1, block).check(None)


@over(dim=(128, 64), group=(4, 16), window=(None, 33))
def test_decoding_steps(place: Place, dtype: torch.dtype, dim: int, group: int, window: int | None) -> None:
    rows = SMALL[DECODING] if place.small else DECODING
    Step(place, dtype, rows, 32 if place.small else dim, group, 2, 32).check(window)


@over(window=(5, 33, 64))
def test_prompts_with_a_window(place: Place, dtype: torch.dtype, window: int) -> None:
    rows = SMALL[MIXED] if place.small else ((0, 63), (100, 100))
    Step(place, dtype, rows, 32 if place.small else 128, 2, 1, 16).check(window)


@over(group=(4, 8))
def test_long_rows_are_split_and_combined(place: Place, dtype: torch.dtype, group: int) -> None:
    """Against torch, as the naive kernel would take minutes."""
    long = 130 if place.small else 4001
    step = Step(place, dtype, ((long, 1), (3, 1), (long // 3, 8)), 32 if place.small else 128, group, 2, 16)
    found, first = step.run(None), 0
    for (before, count), blocks in zip(step.rows, step.lists, strict=True):
        keys, values = (
            step.layer[blocks, part].transpose(0, 1).flatten(1, 2)[:, : before + count].repeat_interleave(group, 0)
            for part in (0, 1)
        )
        queries = step.queries[first : first + count].transpose(0, 1)
        seen = torch.ones(count, before + count, dtype=torch.bool, device=place.device).tril(before)
        expected = torch.nn.functional.scaled_dot_product_attention(
            queries.float(), keys.float(), values.float(), attn_mask=seen
        )
        place.close(found[first : first + count], expected.transpose(0, 1))
        first += count
