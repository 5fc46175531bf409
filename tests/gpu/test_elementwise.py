"""Norms, rotation with the KV write, and the gate, in awkward sizes."""

import torch
from places import Place, over

from legato_engine.kernels.configurations import choose
from legato_engine.kernels.rms_norm import naive as naive_rms_norm
from legato_engine.kernels.rms_norm.triton import add_rms_norm
from legato_engine.kernels.rope import naive as naive_rope
from legato_engine.kernels.rope.triton import norm_rotate_write
from legato_engine.kernels.silu_mul import naive as naive_silu_mul
from legato_engine.kernels.silu_mul.triton import silu_mul

EPS = 1e-5


@over(rows=(1, 63), width=(100, 576, 4096), first=(False, True))
def test_norm_of_a_sum(place: Place, dtype: torch.dtype, rows: int, width: int, first: bool) -> None:
    x, residual, weight = (place.random(*shape, dtype=dtype) for shape in ((rows, width), (rows, width), (width,)))
    out, expected = torch.zeros_like(residual), residual.cpu().clone()
    add_rms_norm(None if first else x, residual, weight, EPS, out, choose("add_rms_norm", {"width": width}, place.chip))
    if not first:
        expected += x.cpu()
    assert torch.equal(residual.cpu(), expected)
    place.close(out, naive_rms_norm.rms_norm(expected, weight.cpu(), EPS))


@over(rows=(1, 63), inner=(100, 1536, 14336))
def test_gate(place: Place, dtype: torch.dtype, rows: int, inner: int) -> None:
    gate_up = place.random(rows, 2 * inner, dtype=dtype)
    out = torch.zeros(rows, inner, dtype=dtype, device=place.device)
    silu_mul(gate_up, out, choose("silu_mul", {"width": inner}, place.chip))
    place.close(out, naive_silu_mul.silu_mul(gate_up.cpu().float()))


@over(tokens=(7, 100), dim=(64, 80, 128, 256), group=(4, 1, 7), block=(16, 64), normed=(True, False))
def test_rotation_and_kv_write(
    place: Place, dtype: torch.dtype, tokens: int, dim: int, group: int, block: int, normed: bool
) -> None:
    """The last two tokens are padding: they are neither rotated nor written."""
    kv_heads, real = 2, tokens - 2
    heads = group * kv_heads
    qkv = place.random(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    arena = torch.zeros(-(-tokens // block) + 1, 2, 2, kv_heads, block, dim, dtype=dtype, device=place.device)
    positions = torch.randint(0, 500, (tokens,)).int()
    slots = torch.randperm(len(arena) * block)[:tokens].int()
    slots[real:] = -1
    angles = torch.outer(torch.arange(500.0), torch.rand(dim // 2))
    norms = [place.random(dim, dtype=dtype) if normed else None for _ in range(2)]
    before, expected = qkv.cpu().clone(), arena.cpu().clone()

    norm_rotate_write(
        qkv, positions.to(place.device), slots.to(place.device), angles.cos().to(place.device),
        angles.sin().to(place.device), *norms, EPS, heads, arena[:, 1],
        choose("norm_rotate_write", {"head_dim": dim, "block_size": block, "group": group}, place.chip),
    )  # fmt: skip

    parts = before[:real].view(real, -1, dim).split((heads, kv_heads, kv_heads), 1)
    turned = []
    for part, norm in zip(parts[:2], norms, strict=True):
        given = part if norm is None else naive_rms_norm.rms_norm(part, norm.cpu(), EPS)
        cos, sin = angles.cos()[positions[:real].long()], angles.sin()[positions[:real].long()]
        turned.append(naive_rope.rotate(given, cos, sin))
    naive_rope.write_kv(turned[1], parts[2], expected[:, 1], slots[:real])
    place.close(arena, expected)
    place.close(qkv[:real, : heads * dim].reshape(real, heads, dim), turned[0])
    assert torch.equal(qkv[real:].cpu(), before[real:])
