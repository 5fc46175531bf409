"""Norms and rotation with the KV write, checked against what is written down."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from legato_engine.backends.kv_groups import of_layer
from legato_engine.kernels.gpu.rope import norm_rotate_write
from legato_engine.kernels.reference import float8
from legato_engine.kernels.reference import rms_norm as naive_rms_norm
from legato_engine.kernels.reference import rope as naive_rope

EPS = 1e-5


def check_rotation(
    close: Callable[[torch.Tensor, torch.Tensor], None],
    qkv: torch.Tensor,
    norms: Sequence[torch.Tensor | None],
    arena: torch.Tensor,
    padding: int,
    config: Any,
    pairs: int,
    scales: torch.Tensor | None = None,
) -> None:
    """Queries and keys of some tokens, all but `padding` of those in `qkv`, are normed, and `pairs` of each rotated;
    keys and values are written to their slots of the last layer, and nothing else is. With `scales` [2, kv_heads], the
    arena holds e4m3."""
    (blocks, kv_heads, _, _, block, dim), layer = arena.shape, of_layer(arena, -1)
    count, heads = len(qkv), qkv.shape[1] // dim - 2 * kv_heads
    angles = torch.outer(torch.arange(500.0), torch.rand(pairs))
    positions, slots = torch.randint(0, 500, (count,)).int(), torch.randperm(blocks * block)[:count].int()
    real = torch.randperm(count)[padding:].sort().values
    padded = torch.ones(count, dtype=torch.bool).index_fill(0, real, False)
    slots[padded] = -1
    factors = None if scales is None else (1 / scales).to(qkv.device)
    before, expected = qkv.cpu().clone(), _bytes(arena).cpu().clone()

    given = [each.to(qkv.device) for each in (positions, slots, angles.cos(), angles.sin())]
    norm_rotate_write(qkv, *given, *norms, EPS, heads, layer, factors, config)

    found, written = qkv.cpu(), _bytes(arena).cpu()
    where = slots[real].long()
    keys = of_layer(written, -1)[where // block, 0, :, where % block]
    parts = before[real].view(len(real), -1, dim).split((heads, kv_heads, kv_heads), 1)
    if scales is not None:
        keys = float8.decode(keys, scales[0][:, None])
    results = found[real, : heads * dim].view(len(real), heads, dim), keys
    for part, norm, result in zip(parts[:2], norms, results, strict=True):
        normed = part if norm is None else naive_rms_norm.rms_norm(part, norm.cpu(), EPS)
        rotated = naive_rope.rotate(normed, *(each[positions[real].long()] for each in (angles.cos(), angles.sin())))
        if scales is not None and result is keys:
            rotated = float8.decode(float8.encode(rotated, scales[0][:, None]), scales[0][:, None])
            assert (result != rotated).sum() <= 1 + result.numel() // 20  # where a number is halfway between two codes
            torch.testing.assert_close(result, rotated, rtol=0.13, atol=float(scales.max()) / 256)
        else:
            close(result, rotated)
    naive_rope.write_kv(keys, parts[2], of_layer(expected, -1), where, scales)
    assert torch.equal(written, expected)
    before[real, : heads * dim] = found[real, : heads * dim]
    assert torch.equal(found, before)


def _bytes(arena: torch.Tensor) -> torch.Tensor:
    """The arena, of e4m3 as bytes."""
    return arena.view(torch.uint8) if arena.dtype == torch.float8_e4m3fn else arena
