"""Norms, rotation with the KV write, and the gate, in awkward sizes."""

import torch
from places import Place, over
from rotation import EPS, check_rotation

from legato_engine.kernels.gpu import silu_mul
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.rms_norm import add_rms_norm
from legato_engine.kernels.reference import rms_norm as naive_rms_norm
from legato_engine.kernels.reference import silu_mul as naive_silu_mul


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
    for gate in ("silu_mul", "gelu_mul"):
        getattr(silu_mul, gate)(gate_up, out, choose("silu_mul", {"width": inner}, place.chip))
        place.close(out, getattr(naive_silu_mul, gate)(gate_up.cpu().float()))


@over(
    {"e4m3": (False, True)}, tokens=(7, 100), dim=(64, 80, 128, 256), group=(4, 1, 7), block=(16, 64),
    normed=(True, False),
)  # fmt: skip
def test_rotation_and_kv_write(
    place: Place, dtype: torch.dtype, tokens: int, dim: int, group: int, block: int, normed: bool, e4m3: bool
) -> None:
    arena = torch.zeros(
        -(-tokens // block) + 1, 2, 2, 2, block, dim, dtype=torch.uint8 if e4m3 else dtype, device=place.device
    )
    scales = torch.rand(2, 2) + 0.01 if e4m3 else None
    norms = [place.random(dim, dtype=dtype) if normed else None for _ in range(2)]
    config = choose("norm_rotate_write", {"head_dim": dim, "block_size": block, "group": group}, place.chip)
    qkv, pairs = place.random(tokens, (group + 2) * 2 * dim, dtype=dtype), dim // 2 if normed else dim * 3 // 8
    check_rotation(place.close, qkv, norms, arena, 2, config, pairs, scales)
