"""Rows come to the same to the last bit whoever computes them. A program of a step compiles the functions of a row once
more, and a compiler that may choose the order of sums, or whether a product is rounded, chooses anew each time.
"""

import numpy as np
import pytest
import torch

from legato_engine.kernels.rms_norm import numba as rms_norm
from legato_engine.kernels.rope import naive as naive_rope
from legato_engine.kernels.rope import numba as rope
from legato_engine.kernels.silu_mul import numba as silu_mul

EPS = np.float32(1e-5)


def normal(*shape):
    return torch.randn(shape).numpy()


def scale(row):
    """Each operation rounded, in the order that the kernel's source tells."""
    whole, sums = len(row) // 16 * 16, np.zeros(16, np.float32)
    for numbers in row[:whole].reshape(-1, 16):
        sums += numbers * numbers
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    total = sums[0]
    for number in row[whole:]:
        total += number * number
    return np.float32(1) / np.sqrt(total / np.float32(len(row)) + EPS)


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
