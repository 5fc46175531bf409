"""Norm, gate, rotation and low-rank updates on a processor compute what their readable twins do, at awkward sizes too.

They do so to the last bit whoever computes a row. A program of a step compiles the functions of a row once more, and a
compiler that may choose the order of sums, or whether a product is rounded, chooses anew each time. Torch's versions
are tested in whole models.
"""

import numpy as np
import pytest
import torch

from legato_engine.backends.cpu import kv_factors, low_rank
from legato_engine.backends.low_rank import LinearShape, numbered
from legato_engine.kernels.cpu import rms_norm, rope, silu_mul
from legato_engine.kernels.cpu.simd.scalar import code_of
from legato_engine.kernels.reference import float8
from legato_engine.kernels.reference import low_rank as naive_low_rank
from legato_engine.kernels.reference import rms_norm as naive_rms_norm
from legato_engine.kernels.reference import rope as naive_rope
from legato_engine.kernels.reference import silu_mul as naive_silu_mul
from legato_engine.kernels.tags import KV_BFLOAT16, KV_FLOAT32
from legato_engine.kernels.torch import float8 as torch_float8
from legato_engine.layers.inputs import AdaptedTokens
from legato_engine.layers.low_rank import Pair

EPS = np.float32(1e-5)
KINDS = np.float32, np.uint16  # uint16 holds bfloat16


def normal(*shape):
    return torch.randn(shape).numpy()


def floats(array):
    return array if array.dtype == np.float32 else (array.astype(np.uint32) << 16).view(np.float32)


def as_held(array, kind):
    """Float32 numbers as an array of this type holds them: the nearest, ties to even."""
    return array if kind == np.float32 else torch.from_numpy(array).bfloat16().float().numpy()


def by_halves(sums):
    """Their sum, in the order that the kernels' sources tell."""
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]


def fused(a, b, c):
    """a · b + c, rounded once: the product is exact in float64, and of the sum's bits there, hardly one in 2^29 cases
    lies so that rounding twice makes a difference."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


def product(a, b):
    """Each operation rounded, in the order that the kernel's source tells."""
    whole, sums = len(a) // 16 * 16, np.zeros(16, np.float32)
    for left, right in zip(a[:whole].reshape(-1, 16), b[:whole].reshape(-1, 16), strict=True):
        sums = fused(left, right, sums)
    total = by_halves(sums)
    for left, right in zip(a[whole:], b[whole:], strict=True):
        total = fused(left, right, total)
    return total


def scale(row):
    return np.float32(1) / np.sqrt(product(row, row) / np.float32(len(row)) + EPS)


@pytest.mark.parametrize(  # threads share more than 4 rows
    ("rows", "width", "by"), [(1, 15, 1.0), (7, 63, 0.22), (7, 96, 1.0), (1, 500, 3.0)]
)
def test_norm(rows, width, by):
    x, residual, weight, by = normal(rows, width), 3 * normal(rows, width), normal(width), np.float32(by)
    added = residual + x * by
    expected = np.array([row * scale(row) * weight for row in added])
    for kind in KINDS:
        own, out = residual.copy(), np.zeros((rows, width), kind)
        rms_norm.add_rms_norm(x, by, own, rows, weight, EPS, out)
        assert np.array_equal(own, added)
        assert np.array_equal(floats(out), as_held(expected, kind))
    twin = torch.from_numpy(residual)
    naive = naive_rms_norm.add_rms_norm(torch.from_numpy(x), twin, torch.from_numpy(weight), 1e-5, float(by))
    torch.testing.assert_close(naive, torch.from_numpy(expected))
    assert np.array_equal(twin, added)


@pytest.mark.parametrize("dim", [20, 64])
def test_norm_of_heads(dim):
    """Heads of a range are normed, and no others."""
    parts, weight = normal(7, 5, dim), normal(dim)
    expected = parts.copy()
    for row in expected:
        row[1:4] = [head * (scale(head) * weight) for head in row[1:4]]

    rms_norm.norm_heads(parts.reshape(7, -1), dim, 3, weight, EPS)

    assert np.array_equal(parts, expected)


@pytest.mark.parametrize("gate", ["silu_mul", "gelu_mul"])
@pytest.mark.parametrize(("rows", "width"), [(1, 63), (7, 160)])
def test_gate(rows, width, gate):
    """A number is the same wherever it stands, also alone in its row."""
    gate_up, alone = 4 * normal(rows, 2 * width), np.zeros((rows * width, 1), np.float32)
    expected, compute = getattr(naive_silu_mul, gate)(torch.from_numpy(gate_up)), getattr(silu_mul, gate)

    compute(gate_up.reshape(rows, 2, width).swapaxes(1, 2).reshape(-1, 2).copy(), rows * width, alone)

    torch.testing.assert_close(torch.from_numpy(alone).view(rows, width), expected)
    for kind in KINDS:
        out = np.zeros((rows, width), kind)
        compute(gate_up, rows, out)
        assert np.array_equal(floats(out), as_held(alone.reshape(rows, width), kind))


@pytest.mark.parametrize("bits", [0xFFFFFFFF, 0x7FC00000, 0x7F800000])
def test_norm_and_gate_make_no_number_of_what_is_none(bits):
    """All bits set is a NaN whose rounding to bfloat16 carries into the sign."""
    x, gate_up = normal(1, 96), normal(1, 192)
    x.view(np.uint32)[0, 7] = gate_up.view(np.uint32)[0, 7] = gate_up.view(np.uint32)[0, 96 + 40] = bits
    for kind in KINDS:
        out = np.zeros((1, 96), kind)
        given = x, np.float32(1), np.zeros((1, 96), np.float32), 1, np.ones(96, np.float32)
        rms_norm.add_rms_norm(*given, EPS, out)
        assert not np.isfinite(floats(out)[0, 7])
        for gate in (silu_mul.silu_mul, silu_mul.gelu_mul):
            gate(gate_up, 1, out)
            assert not np.isfinite(floats(out)[0, [7, 40]]).any()


@pytest.mark.parametrize(  # threads share more than 8 tokens
    ("tokens", "dim", "pairs"), [(1, 20, 10), (63, 52, 26), (63, 52, 20), (1, 20, 0)]
)
@pytest.mark.parametrize("kind", [np.float32, np.uint16, np.uint8])
def test_rotation_and_write(tokens, dim, pairs, kind):
    """Queries and keys are rotated, as a whole or in part; an arena in bfloat16 or e4m3 gets the nearest numbers, with
    ties to even."""
    qkv, angles = normal(tokens, 7, dim), torch.randn(200, pairs)
    qkv[0, 5, :2] = 1 + 2**-8, 1 + 3 * 2**-8  # halfway between two of bfloat16
    positions, slots = torch.randperm(200)[:tokens], torch.randperm(9 * 16)[:tokens]
    cos, sin, given = angles.cos(), angles.sin(), torch.from_numpy(qkv.copy())
    turned = naive_rope.rotate(given[:, :5], cos[positions], sin[positions])
    expected = torch.zeros(9, 2, 2, 16, dim)
    naive_rope.write_kv(turned[:, 3:], given[:, 5:], expected, slots)
    arena = np.zeros((9, 2, 3, 2, 16, dim), kind)
    layer = arena[:, :, 1].swapaxes(1, 2)
    scales = torch.tensor([[[1.0, 1], [1, 1]], [[0.3, 0.01], [2, 7]], [[1, 1], [1, 1]]]) if kind == np.uint8 else None
    factors = kv_factors.from_scales(3, 2, scales).writing

    rope.rotate_and_write(qkv, 3, positions.numpy(), cos.numpy(), sin.numpy(), arena, 1, slots.numpy(), factors)

    assert np.array_equal(qkv[:, :5], turned)
    if scales is None:
        assert np.array_equal(floats(layer), as_held(expected.numpy(), kind))
    else:
        codes = torch.zeros(expected.shape, dtype=torch.uint8)
        naive_rope.write_kv(turned[:, 3:], given[:, 5:], codes, slots, scales[1])
        assert np.array_equal(layer, codes)
    assert not arena[:, :, [0, 2]].any()


def test_numbers_become_the_nearest_code_of_e4m3_and_none_becomes_nan():
    """Every code, and numbers halfway to the next code and next to that; numbers far beyond the largest, infinity and
    NaN."""
    halfway = ((float8.NUMBERS[1:] + float8.NUMBERS[:-1]) / 2).numpy().astype(np.float32)
    around = [np.nextafter(halfway, np.float32(to)) for to in (0, np.inf)]
    beyond = np.array([448, 464, 479.9, 480, 1e30, 3.4e38, np.inf, 1e-30, 1e-45], np.float32)
    given = np.concatenate((float8.NUMBERS.numpy().astype(np.float32), halfway, *around, beyond))
    given = torch.from_numpy(np.concatenate((given, -given, np.array([np.nan], np.float32))))

    codes, one = float8.encode(given, torch.ones(1)), torch.ones(1)

    assert torch.equal(codes & 127 == 127, ~given.isfinite())
    others = torch.tensor([code_of(number) for number in given.numpy()]), torch_float8.encode(given[:, None, None], one)
    for other in others:  # whose NaN may have the other sign
        assert torch.equal(other.flatten() | 128 * (codes & 127 == 127), codes | 128 * (codes & 127 == 127))
    every = torch.arange(256, dtype=torch.uint8)
    decoded = every.view(torch.float8_e4m3fn).float()
    torch.testing.assert_close(float8.decode(every, one), decoded, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(float8.encode(decoded, one) & 127, every & 127)


LAYERS = [
    LinearShape(("o",), (64,)),
    LinearShape(("q", "k", "v"), (320, 32, 32)),
    LinearShape(("up", "down"), (96, 32)),
]
SIZES = {name: size for layer in LAYERS for name, size in zip(layer.names, layer.outputs, strict=True)}
ADAPTERS = {  # ranks by projection, tokens of each, tokens of the step
    "one token": ([{"q": 16}], [[0]], 1),
    "awkward ranks": ([{"q": 1, "v": 17}, {"k": 3, "o": 64, "down": 20}], [[0, 3, 4, 7, 8, 9], [1, 6]], 10),
    "two items, and others": ([{"up": 5}, {}, {"up": 8, "q": 4}], [[*range(0, 150, 2)], [1], [3, 5]], 152),
    "no tokens": ([{"q": 4}], [[]], 4),
    "no adapters": ([], [], 3),
}


def updated(adapters, tokens, x, kind):
    """The outputs of all layers, and those of the readable twin."""
    given = [low_rank.packed(pairs, LAYERS, kind) for pairs in adapters]
    adapted = [AdaptedTokens(each, np.array(of, np.int64)) for each, of in zip(given, tokens, strict=True)]
    rows, found, expected = low_rank.CpuAdaptedRows(adapted, LAYERS, kind), [], []
    for index, layer in enumerate(LAYERS):
        found.append(torch.ones(len(x), sum(layer.outputs)))
        expected.append(found[-1].clone())
        number = sum(len(before.names) for before in LAYERS[:index])
        rows.add(x, found[-1].numpy(), low_rank.LayerProjections(number, len(layer.names)))
    numbers = torch.from_numpy(floats(x))
    for pairs, of in zip(adapters, tokens, strict=True):
        for each in numbered(LAYERS):
            if pair := pairs.get(each.name):
                out = next(out for layer, out in zip(LAYERS, expected, strict=True) if each.name in layer.names)
                ups = [(slice(0, len(pair.a)), each.first, pair.b)]
                naive_low_rank.add(numbers, torch.tensor(of, dtype=torch.int64), pair.a, ups, out)
    return found, expected


@pytest.fixture
def pairs():
    def made(ranks):
        return {name: Pair(bfloat16(r, 96) / 8, bfloat16(SIZES[name], r)) for name, r in ranks.items()}

    return made


def bfloat16(*shape):
    return torch.randn(shape).bfloat16().float()


@pytest.mark.parametrize("matrices", [KV_FLOAT32, KV_BFLOAT16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", ADAPTERS)
def test_updates_of_many_adapters(case, matrices, kind, pairs):
    ranks, tokens, count = ADAPTERS[case]
    x = bfloat16(count, 96).numpy()
    given = x if kind is np.float32 else (x.view(np.uint32) >> 16).astype(np.uint16)
    for found, expected in zip(*updated([*map(pairs, ranks)], tokens, given, matrices), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("matrices", [KV_FLOAT32, KV_BFLOAT16])
def test_an_update_to_the_last_bit_whatever_tokens_are_computed_together(matrices, pairs):
    adapters, x = [pairs({"q": 17, "v": 3})], normal(7, 96)
    (_, together, _), _ = updated(adapters, [[*range(7)]], x, matrices)
    for token in range(7):
        (_, alone, _), _ = updated(adapters, [[0]], x[token : token + 1], matrices)
        assert torch.equal(alone[0], together[token])
