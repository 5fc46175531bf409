"""Attention of ragged steps: decoding rows, prompts and both, whose blocks lie anywhere in an arena."""

from typing import Any

import torch
from attention_step import Step
from places import Place, over

from legato_engine.kernels.gpu.chips import has_float8
from legato_engine.kernels.gpu.configurations import Configuration, choose

MIXED = ((0, 1), (37, 1), (100, 8), (0, 9), (63, 1), (21, 40))  # tokens before, tokens of this step
DECODING = ((99, 1), (499, 1), (0, 1), (62, 5))
PROMPTS = ((0, 63), (100, 100))
SMALL = {MIXED: ((0, 1), (18, 1), (3, 9)), DECODING: ((40, 1), (0, 1), (16, 3)), PROMPTS: ((0, 1), (18, 1), (3, 9))}


def step_of(place: Place, dtype: torch.dtype, rows: Any, dim: int, group: int, block: int, **given: Any) -> Step:
    rows, dim = (SMALL.get(rows, rows), 32) if place.small else (rows, dim)
    return Step(rows, dtype, dim=dim, group=group, block=block, device=place.device, **given)


def chosen(place: Place, dim: int, group: int, block: int, kv_bits: int = 16) -> list[Configuration]:
    shape = {"head_dim": 32 if place.small else dim, "block_size": block, "group": group, "kv_bits": kv_bits}
    return [choose(f"{name}_attention", shape, place.chip) for name in ("decode", "prefill")]


def check(place: Place, dtype: torch.dtype, rows: Any, dim: int, group: int, block: int, **given: Any) -> None:
    step = step_of(place, dtype, rows, dim, group, block, **given)
    bits = 8 * step.layer.dtype.itemsize
    place.close(step.run(*chosen(place, dim, group, block, bits), step.work(place.processors)), step.expected())


@over(dim=(64, 128, 256, 80), group=(4, 1, 7, 8), block=(16, 64))
def test_mixed_steps(place: Place, dtype: torch.dtype, dim: int, group: int, block: int) -> None:
    check(place, dtype, MIXED, dim, group, block, kv_heads=1)


@over(dim=(128, 64, 256), group=(8, 3), rows=(MIXED, PROMPTS), window=(None, 33))
def test_kv_in_e4m3(
    place: Place, dtype: torch.dtype, dim: int, group: int, rows: tuple[tuple[int, int], ...], window: int | None
) -> None:
    """Converted by the chip, and by operations on bits, as on chips that cannot."""
    for kv in (torch.uint8, torch.float8_e4m3fn) if has_float8(place.chip) else (torch.uint8,):
        check(place, dtype, rows, dim, group, 64, window=window, kv=kv)


@over(dim=(128, 64), group=(4, 16), window=(None, 33))
def test_decoding_steps(place: Place, dtype: torch.dtype, dim: int, group: int, window: int | None) -> None:
    check(place, dtype, DECODING, dim, group, 32, window=window)


@over(window=(5, 33, 64))
def test_prompts_with_a_window(place: Place, dtype: torch.dtype, window: int) -> None:
    check(place, dtype, PROMPTS, 128, 2, 16, kv_heads=1, window=window)


@over(group=(4, 8))
def test_long_rows_are_split_and_combined(place: Place, dtype: torch.dtype, group: int) -> None:
    """Against torch, as the naive kernel would take minutes."""
    long = 130 if place.small else 4001
    step = step_of(place, dtype, ((long, 1), (3, 1), (long // 3, 8)), 128, group, 16)
    found, first = step.run(*chosen(place, 128, group, 16), step.work(place.processors)), 0
    for (before, count), table in zip(step.rows, step.tables.tolist(), strict=True):
        blocks = [block for block in table if block >= 0]
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
