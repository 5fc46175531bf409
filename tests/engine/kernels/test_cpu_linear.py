"""Linear layers on a processor, from codes and from tiles, compute what their weights do, and dequantize to exactly
these.
"""

from functools import cache

import emulated_kernels
import emulated_tiles
import numba
import numpy as np
import packed_weights
import pytest
import torch

from legato_engine import processor
from legato_engine.backends.cpu.codes import Codes
from legato_engine.backends.cpu.numerics import Tiles
from legato_engine.kernels import paths
from legato_engine.kernels.cpu.linear import bf16_tiles
from legato_engine.kernels.reference import linear as naive

WITH_AMX = pytest.mark.skipif(not processor.detect().amx, reason="this processor has no AMX")
TYPES = pytest.mark.parametrize("kind", packed_weights.TYPES)
emulated = cache(lambda: emulated_kernels.load("linear.bf16_tiles")[0])


def bits(x):
    """bfloat16 as uint16."""
    return Tiles(paths.TILES).arena_view(x.bfloat16())


def weight_of(packed):
    minimum = torch.zeros_like(packed.scale.floats()) if packed.minimum is None else packed.minimum.floats()
    return naive.dequantized(packed.codes, packed.scale.floats(), minimum)


@TYPES
@pytest.mark.parametrize("rows", [1, 4, 13])  # kernels take four at a time, or one
def test_products_of_few_rows(kind, rows):
    packed = packed_weights.packed(kind, 96, 512)
    x, out = torch.randn(rows, 512), np.full((rows + 1, 160), 7, np.float32)

    Codes(packed, paths.CODES)(x.numpy(), rows, out, 32)

    expected = naive.linear(x.double(), weight_of(packed)).float()
    torch.testing.assert_close(torch.from_numpy(out[:rows, 32:128]), expected, atol=2e-3, rtol=1e-5)
    out[:rows, 32:128] = 7
    assert (out == 7).all()


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_codes_are_exact_for_bfloat16_rows(kind):
    packed, x = packed_weights.packed(kind, 64, 96), torch.randn(5, 96).bfloat16().float()
    out = np.zeros((5, 64), np.float32)

    Codes(packed, paths.CODES)(bits(x), 5, out)

    torch.testing.assert_close(torch.from_numpy(out), x @ packed.floats().T, atol=1e-4, rtol=1e-5)


@TYPES
def test_dequantized_weights_are_exact_and_codes_take_what_their_bits_say(kind):
    packed = packed_weights.packed(kind, 96, 512)
    weight, codes = weight_of(packed), Codes(packed, paths.CODES)
    assert torch.equal(packed.floats(), weight)

    part = np.empty((512, 64), np.float32)
    codes.dequantize(16, part)
    assert np.array_equal(part.T, weight[16:80])

    indexes = np.array([95, 0, 17, 17])
    assert np.array_equal(codes.rows(indexes), weight[indexes])

    parts = [part for each in (packed.scale, packed.minimum) if each for part in (each.values, each.factors)]
    scales = sum(part.nbytes for part in parts if part is not None)
    assert codes.nbytes <= packed.codes.numel() * packed.bits // 8 + scales + 64


@pytest.fixture(params=["emulated", pytest.param("real", marks=WITH_AMX)])
def tiles(request):
    yield emulated() if request.param == "emulated" else bf16_tiles
    assert emulated_tiles.faults() == []


@pytest.mark.parametrize("rows", [1, 16, 17, 63])
def test_products_of_tiles(tiles, rows):
    room = -(-rows // 16) * 16
    x, weight = torch.randn(room, 160).bfloat16().float(), torch.randn(96, 160).bfloat16().float()
    memory = np.full((room + 16, 96), np.nan, np.float32)
    out = memory[:room]

    tiles.wide(bits(x), rows, tiles.pack_tiles(weight), tiles.SHAPES, numba.get_num_threads(), out)

    right = naive.linear(x, weight)[:rows]
    torch.testing.assert_close(torch.from_numpy(out[:rows]), right, atol=1e-3, rtol=1e-4)
    assert np.isnan(memory[room:]).all()
    if rows == 1:
        tiles.narrow(bits(x), 1, tiles.pack_tiles(weight), out)
        torch.testing.assert_close(torch.from_numpy(out[:1]), right, atol=1e-3, rtol=1e-4)


def test_tiles_that_come_in_groups(tiles):
    """Groups have two pairs of panels, so that threads have a group and a part of one."""
    inputs = tiles.CACHED // 128
    x, weight = torch.randn(64, inputs).bfloat16(), torch.randn(160, inputs).bfloat16()
    out = np.full((64, 160), np.nan, np.float32)

    tiles.wide(bits(x), 49, tiles.pack_tiles(weight), tiles.SHAPES, numba.get_num_threads(), out)

    right = naive.linear(x.double(), weight.double())[:49].float()
    torch.testing.assert_close(torch.from_numpy(out[:49]), right, atol=1e-2, rtol=1e-4)
