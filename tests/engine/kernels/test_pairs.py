"""What products of bfloat16 take: queries in pairs of neighbouring dimensions, and weights of values."""

import numpy as np
import torch
from numba import njit

from legato_engine.kernels import bfloat16
from legato_engine.kernels.attention import numba_pairs_row, numba_pairs_tile
from legato_engine.kernels.vector import address, load, store

LANES, DIM = 32, 64
SPECIAL = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x80000001]


def test_queries_are_rounded_as_torch_does_and_paired():
    """Ties go to even, too large ones become infinite, and what is no number stays none. Of 32 dimensions, 16 even ones
    are before 16 odd ones."""
    asked = torch.randn(DIM, LANES).numpy()
    for place, bits in enumerate(SPECIAL):
        asked.view(np.uint32)[place::16, place] = bits
    expected = torch.from_numpy(asked).bfloat16().float().reshape(DIM // 32, 2, 16, LANES)

    numba_pairs_tile.pack_queries(asked.ctypes.data, DIM)

    words = asked.view(np.uint32)[: DIM // 2].reshape(DIM // 32, 16, LANES)
    check(words, expected)


def test_so_are_those_of_a_decoding_row():
    asked = torch.randn(LANES, DIM).numpy()
    for place, bits in enumerate(SPECIAL):
        asked.view(np.uint32)[place, place::16] = bits
    expected = torch.from_numpy(asked).bfloat16().float().reshape(LANES, DIM // 32, 2, 16)

    numba_pairs_row.pack_queries(asked.ctypes.data, DIM, LANES)

    words = asked.view(np.uint32)[:, : DIM // 2].reshape(LANES, DIM // 32, 16)
    check(words.transpose(1, 2, 0), expected.permute(1, 2, 3, 0))


def check(words, expected):
    """words [dim / 32, 16, lanes] hold the even and the odd ones of expected [dim / 32, 2, 16, lanes]."""
    for which, halves in enumerate((words << 16, words & 0xFFFF0000)):
        found = torch.from_numpy(halves.view(np.float32))
        torch.testing.assert_close(found, expected[:, which], atol=0, rtol=0, equal_nan=True)


@njit
def weights_of(x):
    for at in range(0, 4 * len(x), 64):
        store(address(x) + at, bfloat16.weight(load(address(x) + at)))


def test_weights_are_powers_of_two_in_bfloat16():
    """Those that are no numbers stay none: a score of tiles has no bits in its lower half then."""
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
