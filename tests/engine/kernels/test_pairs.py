"""Operands of bfloat16 products: queries in pairs of neighbouring dimensions, and weights of values."""

import numpy as np
import pytest
import torch
from numba import njit

from legato_engine.kernels.cpu.attention import pairs_row, pairs_tile
from legato_engine.kernels.cpu.simd import bfloat16
from legato_engine.kernels.cpu.simd.vector import address, load, store

LANES, DIM = 32, 64
SPECIAL = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x80000001]


@pytest.mark.parametrize("which", ["tile", "decoding row"])
def test_queries_are_rounded_as_torch_does_and_paired(which):
    """Ties go to even, too large ones become infinite, and NaN stays NaN. Of 32 dimensions, 16 even ones are before 16
    odd ones. A tile has [dim, lanes], a decoding row [lanes, dim]."""
    queries = torch.randn(DIM, LANES).numpy()
    for place, bits in enumerate(SPECIAL):
        queries.view(np.uint32)[place::16, place] = bits
    expected = torch.from_numpy(queries).bfloat16().float().reshape(DIM // 32, 2, 16, LANES)

    if which == "tile":
        pairs_tile.pack_queries(queries.ctypes.data, DIM)
    else:
        rows = queries.T.copy()
        pairs_row.pack_queries(rows.ctypes.data, DIM, LANES)
        queries = rows.T.copy()

    words = queries.view(np.uint32)[: DIM // 2].reshape(DIM // 32, 16, LANES)
    for odd, halves in enumerate((words << 16, words & 0xFFFF0000)):
        found = torch.from_numpy(halves.view(np.float32))
        torch.testing.assert_close(found, expected[:, odd], atol=0, rtol=0, equal_nan=True)


@njit
def weights_of(x):
    for at in range(0, 4 * len(x), 64):
        store(address(x) + at, bfloat16.weight(load(address(x) + at)))


def test_weights_are_powers_of_two_in_bfloat16():
    """NaN stays NaN: a score of tiles has no bits in its lower half then."""
    x = np.linspace(-130, 0, 16 * 4096, dtype=np.float32)
    x[:4], exact = [np.nan, -np.inf, -1e30, -127.5], np.exp2(x, dtype=np.float64)
    x.view(np.uint32)[4:7] = 0x7FFF0000, 0xFFFF0000, 0xFF810000

    weights_of(x)

    assert np.isnan(x[[0, 4, 5, 6]]).all()
    assert (x[1:4] == 0).all()
    assert (x.view(np.uint32) & 0xFFFF == 0).all()
    assert x[-1] == 1
    tiny = exact < 2.0**-126
    np.testing.assert_allclose(x[~tiny][7:], exact[~tiny][7:], rtol=2**-8 + 1.2e-4)
    assert (x[tiny & ~np.isnan(x)] <= 2.0**-126).all()
