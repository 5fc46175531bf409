"""Norm, rotation with the KV write, and gate by Triton compute what their readable twins do, at awkward sizes too."""

import torch
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from rotation import EPS, check_rotation

from legato_engine.kernels.gpu import rms_norm, rope, silu_mul
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear import fp8
from legato_engine.kernels.reference import float8
from legato_engine.kernels.reference import rms_norm as naive_rms_norm
from legato_engine.kernels.reference import silu_mul as naive_silu_mul

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
    return torch.randn(rows, width + spare).to(dtype)[:, :width]


@few
@given(
    st.integers(1, 9),
    WIDTHS,
    DTYPES,
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0, 8]),
    st.sampled_from([None, 1.0, 0.22]),
)
def test_norm(rows, width, dtype, tile, spare, by):
    config = Configuration({"ROWS": tile})
    x, residual, weight = strided(rows, width, dtype, spare), strided(rows, width, dtype, spare), torch.randn(width)
    weight, twin, out = weight.to(dtype), residual.clone(), torch.full((rows + 1, width), 7.0, dtype=dtype)

    rms_norm.add_rms_norm(None if by is None else x, residual, weight, EPS, out[:rows], config, by or 1.0)

    if by is not None:
        twin.copy_(twin.float() + x.float() * by)
    rounded_alike(out[:rows], naive_rms_norm.rms_norm(twin, weight, EPS))
    assert torch.equal(residual, twin)
    assert (out[rows] == 7).all()


def test_norm_divides_by_the_width_and_sees_eps():
    """Nearly all of a padded row is padding, and the rest is as small as eps."""
    residual, out = torch.full((1, 33), 1e-3), torch.empty(1, 33)
    rms_norm.add_rms_norm(None, residual, torch.ones(33), 1e-6, out, Configuration({"ROWS": 1}))
    torch.testing.assert_close(out, torch.full((1, 33), 0.5**0.5))


@few
@given(
    st.integers(1, 5), WIDTHS, DTYPES, st.sampled_from([16, 64, 512]), st.sampled_from([0, 8]),
    st.sampled_from(["silu_mul", "gelu_mul"]),
)  # fmt: skip
def test_gate(rows, inner, dtype, tile, spare, gate):
    gate_up = strided(rows, 2 * inner, dtype, spare)
    out = torch.full((rows, inner + 1), 7.0, dtype=dtype)

    getattr(silu_mul, gate)(gate_up, out[:, :inner], Configuration({"WIDTH": tile}))

    close(out[:, :inner], getattr(naive_silu_mul, gate)(gate_up))
    assert (out[:, inner] == 7).all()


def test_gate_at_its_ends():
    """No number is made of infinity divided by infinity."""
    gate_up, out = torch.tensor([[-200.0, 200.0, 0.0, 1.0, 1.0, 1.0]]), torch.empty(1, 3)
    for gate in (silu_mul.silu_mul, silu_mul.gelu_mul):
        gate(gate_up, out, Configuration({"WIDTH": 16}))
        assert out.tolist() == [[0.0, 200.0, 0.0]]


@few
@given(
    st.integers(1, 5), st.sampled_from([16, 100, 288]), DTYPES, st.sampled_from(["none", 1, 0.22]), st.booleans(),
    st.sampled_from(["silu_mul", "gelu_mul"]),
)  # fmt: skip
def test_results_in_e4m3_are_those_of_a_pass_over_them(rows, width, dtype, by, grouped, gate):
    """Bit for bit, with a scale per row or per 32 numbers, and for a row of zeros."""
    group = 32 if grouped else width

    def memory():
        codes = torch.zeros(rows, width).to(torch.float8_e4m3fn)
        return Float8Rows(codes, torch.zeros(-(-width // group), rows), group)

    def check(compute, config):
        plain, out, rounded, expected = torch.zeros(rows, width).to(dtype), torch.zeros(rows, width).to(dtype), *pair
        compute(plain, config, None)
        compute(out, config, rounded)
        fp8.quantize_rows(plain, expected, Configuration({"WIDTH": 64}))
        assert torch.equal(out, plain)
        assert torch.equal(rounded.scales, expected.scales)
        assert torch.equal(rounded.codes.float(), expected.codes.float())

    pair = memory(), memory()
    x, weight = torch.randn(rows, width).to(dtype), torch.randn(width).to(dtype)
    residual, gate_up = torch.randn(rows, width).to(dtype), torch.randn(rows, 2 * width).to(dtype)
    x[0] = residual[0] = gate_up[0] = 0
    given, factor = (None, 1.0) if by == "none" else (x, by)
    check(
        lambda out, config, rounded: rms_norm.add_rms_norm(
            given, residual.clone(), weight, EPS, out, config, factor, rounded
        ),
        Configuration({"ROWS": 2}),
    )
    check(
        lambda out, config, rounded: getattr(silu_mul, gate)(gate_up, out, config, rounded),
        Configuration({"WIDTH": 64}),
    )


@few
@given(
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 7, 16]),
    dim=st.sampled_from([16, 32, 64, 80, 96, 128, 160, 192, 256]),
    block=st.sampled_from([16, 32, 64]),
    dtype=DTYPES,
    normed=st.tuples(st.booleans(), st.booleans()),
    tiles=st.fixed_dictionaries({"TOKENS": st.sampled_from([1, 2, 4]), "HEADS": st.sampled_from([1, 4, 8])}),
    layers=st.integers(1, 2),
    tokens=st.integers(1, 9),
    padding=st.integers(0, 3),
    share=st.sampled_from([1, 1, 0.75, 0.25, 0]),
    e4m3=st.booleans(),
)
def test_rotation_and_write(kv_heads, group, dim, block, dtype, normed, tiles, layers, tokens, padding, share, e4m3):
    qkv = torch.randn(tokens + padding, (group + 2) * kv_heads * dim).to(dtype)
    norms = [torch.randn(dim).to(dtype) if each else None for each in normed]
    arena, scales = torch.randn(4, kv_heads, layers, 2, block, dim).to(dtype), None
    if e4m3:
        arena, scales = arena.to(torch.float8_e4m3fn), torch.rand(2, kv_heads) + 0.01
    check_rotation(rounded_alike, qkv, norms, arena, padding, Configuration(tiles), int(dim // 2 * share), scales)


def test_numbers_become_the_nearest_code_of_e4m3_and_none_becomes_nan():
    """The numbers are written as values; keys are zeros."""
    halfway = (float8.NUMBERS[1:] + float8.NUMBERS[:-1]).float() / 2
    around = [halfway.nextafter(torch.tensor(to)) for to in (0.0, torch.inf)]
    beyond = torch.tensor([464, 480, 1e30, 3.4e38, torch.inf, torch.nan, 1e-30, 1e-45, 0.0])
    values = torch.nn.functional.pad(torch.cat((float8.NUMBERS.float(), halfway, *around, beyond)), (0, 14))
    values = torch.cat((values, -values)).view(-1, 16)
    count = len(values)
    qkv, slots = torch.cat((torch.zeros(count, 32), values), 1), torch.arange(count).int()
    arena, cos = torch.zeros(-(-count // 16), 2, 1, 16, 16, dtype=torch.uint8), torch.ones(count, 8)

    config = Configuration({"TOKENS": 4, "HEADS": 1})
    rope.norm_rotate_write(qkv, slots, slots, cos, 0 * cos, None, None, EPS, 1, arena, torch.ones(2, 1), config)

    found, expected = arena[:, 1, 0].flatten(0, 1)[:count], float8.encode(values, torch.ones(1))
    is_nan = expected & 127 == 127
    assert torch.equal(is_nan, ~values.isfinite())
    assert torch.equal(found | 128 * is_nan, expected | 128 * is_nan)
