"""Norm, rotation with the KV write, and gate by Triton compute what their readable twins do, at awkward sizes too."""

import torch
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.kernels.configurations import Configuration
from legato_engine.kernels.rms_norm import naive as naive_rms_norm
from legato_engine.kernels.rms_norm import triton as rms_norm
from legato_engine.kernels.rope import naive as naive_rope
from legato_engine.kernels.rope import triton as rope
from legato_engine.kernels.silu_mul import naive as naive_silu_mul
from legato_engine.kernels.silu_mul import triton as silu_mul

EPS = 1e-5
DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
WIDTHS = st.sampled_from([1, 16, 63, 64, 100, 500])
few = settings(max_examples=times(12), deadline=None)


def close(found, expected):
    """Four times the distance `eps` of neighbouring numbers in 16 bits: the gate's twin rounds three times and its
    kernel twice, by at most half of eps each, and where float32 differs next to a border, a number becomes its
    neighbour, which the next rounding and a rotation can double.
    """
    eps = torch.finfo(found.dtype).eps
    atol, rtol = (2e-6, 2e-5) if found.dtype == torch.float32 else (4 * eps, 4 * eps)
    torch.testing.assert_close(found, expected, atol=atol, rtol=rtol)


def rounded_alike(found, expected):
    """Close, and in 16 bits nearly always equal, as the kernel rounds where its twin does, and nowhere else."""
    close(found, expected)
    if found.dtype != torch.float32:
        assert (found != expected).sum() <= 1 + found.numel() // 100


def strided(rows, width, dtype, spare):
    """Rows that do not lie side by side."""
    return torch.randn(rows, width + spare).to(dtype)[:, :width]


@few
@given(st.integers(1, 9), WIDTHS, DTYPES, st.sampled_from([1, 2, 4]), st.sampled_from([0, 8]), st.booleans())
def test_norm(rows, width, dtype, tile, spare, adds):
    config = Configuration({"ROWS": tile})
    x, residual, weight = strided(rows, width, dtype, spare), strided(rows, width, dtype, spare), torch.randn(width)
    weight, twin, out = weight.to(dtype), residual.clone(), torch.full((rows + 1, width), 7.0, dtype=dtype)

    rms_norm.add_rms_norm(x if adds else None, residual, weight, EPS, out[:rows], config)

    add = naive_rms_norm.add_rms_norm
    rounded_alike(out[:rows], add(x, twin, weight, EPS) if adds else naive_rms_norm.rms_norm(twin, weight, EPS))
    assert torch.equal(residual, twin)
    assert (out[rows] == 7).all()


def test_norm_divides_by_the_width_and_sees_eps():
    """Where nearly all of a padded row is padding, and what is there is as small as eps."""
    residual, out = torch.full((1, 33), 1e-3), torch.empty(1, 33)
    rms_norm.add_rms_norm(None, residual, torch.ones(33), 1e-6, out, Configuration({"ROWS": 1}))
    torch.testing.assert_close(out, torch.full((1, 33), 0.5**0.5))


@few
@given(st.integers(1, 5), WIDTHS, DTYPES, st.sampled_from([16, 64, 512]), st.sampled_from([0, 8]))
def test_gate(rows, inner, dtype, tile, spare):
    gate_up = strided(rows, 2 * inner, dtype, spare)
    out = torch.full((rows, inner + 1), 7.0, dtype=dtype)

    silu_mul.silu_mul(gate_up, out[:, :inner], Configuration({"WIDTH": tile}))

    close(out[:, :inner], naive_silu_mul.silu_mul(gate_up))
    assert (out[:, inner] == 7).all()


def test_gate_at_its_ends():
    """No number is made of infinity divided by infinity."""
    gate_up, out = torch.tensor([[-200.0, 200.0, 0.0, 1.0, 1.0, 1.0]]), torch.empty(1, 3)
    silu_mul.silu_mul(gate_up, out, Configuration({"WIDTH": 16}))
    assert out.tolist() == [[0.0, 200.0, 0.0]]


@st.composite
def shapes(draw):
    kv_heads = draw(st.integers(1, 3))
    return {
        "tokens": draw(st.integers(1, 9)),
        "heads": kv_heads * draw(st.sampled_from([1, 2, 3, 7, 16])),
        "kv_heads": kv_heads,
        "dim": draw(st.sampled_from([16, 32, 64, 80, 96, 128, 160, 192, 256])),
        "block": draw(st.sampled_from([16, 32, 64])),
        "dtype": draw(DTYPES),
        "norms": draw(st.sampled_from([(True, True), (False, False), (True, False), (False, True)])),
        "tiles": {"TOKENS": draw(st.sampled_from([1, 2, 4])), "HEADS": draw(st.sampled_from([1, 4, 8]))},
        "layers": draw(st.integers(1, 2)),
        "padded": draw(st.integers(0, 3)),
    }


def turned(part, positions, cos, sin, norm):
    if norm is not None:
        part = naive_rms_norm.rms_norm(part, norm, EPS)
    return naive_rope.rotate(part, cos[positions], sin[positions])


@few
@given(shapes())
def test_rotation_and_write(shape):
    tokens, heads, kv_heads, dim = shape["tokens"], shape["heads"], shape["kv_heads"], shape["dim"]
    dtype, padded = shape["dtype"], shape["padded"]
    angles = torch.randn(50, dim // 2)
    cos, sin = angles.cos(), angles.sin()
    qkv = torch.randn(tokens + padded, (heads + 2 * kv_heads) * dim).to(dtype)
    norms = [torch.randn(dim).to(dtype) if normed else None for normed in shape["norms"]]
    positions = torch.randint(0, 50, (tokens + padded,), dtype=torch.int32)
    slots = torch.randperm(4 * shape["block"])[: tokens + padded].int()
    real = sorted(torch.randperm(tokens + padded)[:tokens].tolist())
    slots[[t for t in range(tokens + padded) if t not in real]] = -1
    arena = torch.randn(4, shape["layers"], 2, kv_heads, shape["block"], dim).to(dtype)
    expected, before = arena.clone(), qkv.clone()
    layer = shape["layers"] - 1

    rope.norm_rotate_write(
        qkv, positions, slots, cos, sin, *norms, EPS, heads, arena[:, layer], Configuration(shape["tiles"])
    )

    queries, keys, values = before[real].view(tokens, -1, dim).split((heads, kv_heads, kv_heads), 1)
    where = slots[real].long()
    written = arena[where // shape["block"], layer, 0, :, where % shape["block"]]
    rounded_alike(written, turned(keys, positions[real], cos, sin, norms[1]))
    naive_rope.write_kv(written, values, expected[:, layer], where)
    assert torch.equal(arena, expected)
    found = qkv[real][:, : heads * dim].view(tokens, heads, dim)
    rounded_alike(found, turned(queries, positions[real], cos, sin, norms[0]))
    before[real, : heads * dim] = qkv[real, : heads * dim]
    assert torch.equal(qkv, before)
