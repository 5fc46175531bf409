"""8-bit activations: what the kernel computes is exactly the product of the rounded rows and the file's weights."""

import numpy as np
import pytest
import torch

from legato_engine import processor
from legato_engine.backends.cpu.codes import Codes
from legato_engine.kernels.linear import naive
from legato_engine.kernels.linear.numba_int8 import round_rows
from legato_engine.weights.packed import Packed, Scales

pytestmark = pytest.mark.skipif(not processor.detect().vnni, reason="this processor has no AVX-512 VNNI")
INPUTS = 512


def halves(*shape, low=0.001, high=0.02):
    return (torch.rand(*shape) * (high - low) + low).half()


def k_quant(outputs):
    """Scales as K-quants hold them: int8 times a float16 for 256 inputs."""
    return Scales(torch.randint(1, 64, (outputs, INPUTS // 32), dtype=torch.int8), halves(outputs, INPUTS // 256))


def weight(kind, outputs=80):
    groups = outputs, INPUTS // 32
    four = torch.randint(0, 16, (outputs, INPUTS), dtype=torch.uint8)
    eight = torch.randint(-128, 128, (outputs, INPUTS), dtype=torch.int8)
    match kind:
        case "Q4_1":
            return Packed(4, four, Scales(halves(*groups)), Scales(-halves(*groups)))
        case "Q4_K":
            return Packed(4, four, k_quant(outputs), k_quant(outputs))
        case "Q8_0":
            return Packed(8, eight, Scales(halves(*groups)))
        case "Q5_1":
            return Packed(8, eight, Scales(halves(*groups)), Scales(halves(*groups)))
    raise AssertionError(kind)


def product(packed, x, rows):
    """What the codes of `packed` give for the first `rows` of x [room, in], in columns 16 and on of the output."""
    out = np.full((len(x), len(packed.codes) + 16), np.nan, np.float32)
    codes = Codes(packed, int8=True)
    assert codes.int8
    codes(x.numpy(), rows, out, 16)
    return torch.from_numpy(out[:rows, 16:])


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 24, 25, 40])
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q8_0", "Q5_1"])
def test_products_are_those_of_rounded_rows(kind, rows):
    packed, x = weight(kind), torch.randn(40, INPUTS) * torch.rand(40, 1).exp()
    expected = naive.linear(naive.rounded(x[:rows]), packed.floats())
    torch.testing.assert_close(product(packed, x, rows), expected, atol=2e-5 * float(expected.abs().max()), rtol=1e-5)


def test_rows_are_rounded_as_written_down():
    """Also where a number is about half-way between two codes, as one in a million is."""
    x = torch.randn(1 << 14, INPUTS, generator=torch.Generator().manual_seed(0))
    codes, parts = round_rows(x.numpy(), len(x), INPUTS // 32, 8, False)
    scaled = torch.from_numpy(codes.astype(np.float32) * parts[:, :, 0, :, None])
    expected = naive.rounded(x)
    torch.testing.assert_close(scaled.transpose(1, 2).reshape(x.shape), expected, atol=0, rtol=1e-6)


def test_rounding_costs_about_half_a_percent():
    packed, x = weight("Q4_1"), torch.randn(32, INPUTS)
    exact = naive.linear(x, packed.floats())
    error = (product(packed, x, 32) - exact).pow(2).mean().sqrt() / exact.std()
    assert 0.001 < error < 0.01


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q8_0"])
def test_a_row_is_the_same_in_any_batch(kind):
    packed, x = weight(kind), torch.randn(40, INPUTS)
    alone = torch.cat([product(packed, x[row : row + 8], 1) for row in range(33)])
    for rows in (2, 8, 17, 33):
        assert torch.equal(product(packed, x, rows), alone[:rows])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_are_the_same_in_any_batch(sign):
    packed = weight("Q8_0")
    packed.codes.fill_(127)
    x = torch.full((40, INPUTS), float(sign))
    assert torch.equal(product(packed, x, 33), product(packed, x, 1).expand(33, -1))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rows", [1, 3])
def test_what_is_no_number_stays_none_and_in_its_row(rows, number):
    x = torch.randn(8, INPUTS)
    x[0, 100] = number
    found = product(weight("Q4_1"), x, rows)
    assert not found[0].isfinite().any()
    assert found[1:].isfinite().all()


@pytest.mark.parametrize("size", [0.0, 1e-38])
def test_rows_of_nothing_give_nothing(size):
    assert product(weight("Q4_1"), torch.full((8, INPUTS), size), 2).abs().max() < 1e-30


def test_groups_of_16_inputs_keep_float32():
    packed = Packed(8, torch.zeros(16, 64, dtype=torch.int8), Scales(halves(16, 4)))
    assert not Codes(packed, int8=True).int8
