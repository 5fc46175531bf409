"""Linear layers from codes compute what their weights do, and dequantize to exactly these."""

import numpy as np
import pytest
import torch

from legato_engine.backends.cpu.codes import Codes
from legato_engine.kernels.linear import naive
from legato_engine.weights.packed import Packed, Scales


def halves(*shape):
    return (torch.rand(shape) * 0.02 - 0.01).half()


def plain(groups):
    return Scales(halves(96, groups))


def products(groups, least=-128):
    return Scales(torch.randint(least, 128, (96, groups), dtype=torch.int8), halves(96, 2))


def codes4():
    return torch.randint(0, 16, (96, 512), dtype=torch.uint8)


def codes8():
    return torch.randint(-128, 128, (96, 512), dtype=torch.int8)


FORMS = {
    "4 bits": lambda: Packed(4, codes4(), plain(16), plain(16)),
    "4 bits, factors": lambda: Packed(4, codes4(), products(16, 0), products(16, 0)),
    "8 bits": lambda: Packed(8, codes8(), plain(16)),
    "8 bits, minima": lambda: Packed(8, codes8(), plain(16), plain(16)),
    "8 bits, factors, minima": lambda: Packed(8, codes8() & 31, products(16, 0), products(16, 0)),
    "8 bits, factors, groups of 16": lambda: Packed(8, codes8(), products(32)),
}
forms = pytest.mark.parametrize("form", FORMS)


def weight_of(packed):
    minimum = torch.zeros_like(packed.scale.floats()) if packed.minimum is None else packed.minimum.floats()
    return naive.dequantized(packed.codes, packed.scale.floats(), minimum)


@forms
@pytest.mark.parametrize("rows", [1, 4, 7, 13])
def test_few_rows(form, rows):
    packed = FORMS[form]()
    x, out = torch.randn(rows, 512), np.full((rows + 1, 160), 7, np.float32)

    Codes(packed)(x.numpy(), rows, out, 32)

    expected = naive.linear(x.double(), weight_of(packed)).float()
    torch.testing.assert_close(torch.from_numpy(out[:rows, 32:128]), expected, atol=2e-3, rtol=1e-5)
    out[:rows, 32:128] = 7
    assert (out == 7).all()


@forms
def test_dequantized_weights_are_exact(form):
    packed = FORMS[form]()
    weight, codes = weight_of(packed), Codes(packed)
    assert torch.equal(packed.floats(), weight)

    part = np.empty((512, 64), np.float32)
    codes.dequantize(16, part)
    assert np.array_equal(part.T, weight[16:80])

    indexes = np.array([95, 0, 17, 17])
    assert np.array_equal(codes.rows(indexes), weight[indexes])


@forms
def test_codes_take_what_their_bits_say(form):
    packed = FORMS[form]()
    values = packed.codes.numel()
    scales = sum(
        part.nbytes
        for each in (packed.scale, packed.minimum)
        if each
        for part in (each.values, each.factors)
        if part is not None
    )
    assert Codes(packed).nbytes <= values * packed.bits // 8 + scales + 64
