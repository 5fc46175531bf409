"""Rows come to the same to the last bit whoever computes them. A program of a step compiles the functions of a row once
more, and a compiler that may choose the order of sums, or whether a product is rounded, chooses anew each time.
"""

import numpy as np
import pytest
import torch

from legato_engine.kernels.low_rank import numba as low_rank
from legato_engine.kernels.rms_norm import numba as rms_norm
from legato_engine.kernels.rope import naive as naive_rope
from legato_engine.kernels.rope import numba as rope
from legato_engine.kernels.silu_mul import numba as silu_mul

EPS = np.float32(1e-5)


def normal(*shape):
    return torch.randn(shape).numpy()


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


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("width", [15, 63, 96, 160, 500, 576])
def test_norm(rows, width):
    x, residual, weight, out = normal(rows, width), 3 * normal(rows, width), normal(width), normal(rows, width)
    added = residual + x

    rms_norm.add_rms_norm(x, residual, rows, weight, EPS, out)

    assert np.array_equal(residual, added)
    assert np.array_equal(out, [row * scale(row) * weight for row in added])


@pytest.mark.parametrize("dim", [20, 64, 96])
def test_norm_of_heads(dim):
    parts, weight = normal(7, 5, dim), normal(dim)
    expected = parts.copy()
    for row in expected:
        row[1:4] = [head * (scale(head) * weight) for head in row[1:4]]

    rms_norm.norm_heads(parts, 1, 3, weight, EPS)

    assert np.array_equal(parts, expected)


@pytest.mark.parametrize("tokens", [1, 63])
def test_rotation(tokens):
    qkv, angles, arena = normal(tokens, 7, 52), torch.randn(200, 26), np.zeros((9, 1, 2, 2, 16, 52), np.float32)
    cos, sin, positions = angles.cos(), angles.sin(), torch.randperm(200)[:tokens]
    expected = naive_rope.rotate(torch.from_numpy(qkv[:, :5]), cos[positions], sin[positions]).numpy()

    rope.rotate_and_write(qkv, 3, positions.numpy(), cos.numpy(), sin.numpy(), arena, 0, np.arange(tokens))

    assert np.array_equal(qkv[:, :5], expected)


@pytest.mark.parametrize("width", [63, 160])
def test_gate(width):
    """A number is the same wherever it stands, also alone in its row."""
    gate_up, whole, alone = 4 * normal(1, 2 * width), normal(1, width), normal(width, 1)

    silu_mul.silu_mul(gate_up, 1, whole)
    silu_mul.silu_mul(gate_up.reshape(2, width).T.copy(), width, alone)

    assert np.array_equal(whole, alone.T)


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("width", [15, 96, 500])
def test_low_rank_update(tokens, width):
    """Of one projection, ranks 0 to 2."""
    x, down, up, out = normal(tokens, width), normal(3, width), normal(3, 20), normal(tokens, 20)
    expected = out.copy()
    for row, to in zip(x, expected, strict=True):
        for rank, inner in enumerate([product(line, row) for line in down]):
            to[:] = fused(up[rank], inner, to)

    low_rank.add(x, np.arange(tokens), down, up.ravel(), np.array([[0, 3, 0, 20, 0]]), out)

    assert np.array_equal(out, expected)
