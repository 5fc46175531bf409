"""8-bit activations: what kernels compute is exactly the product of the rounded rows and the file's weights. Where the
processor has no AVX-512 VNNI, its instruction is emulated.
"""

from functools import cache

import emulated_kernels
import numpy as np
import packed_weights
import pytest
import torch

from legato_engine import processor
from legato_engine.backends.cpu import codes as codes_of
from legato_engine.backends.cpu.codes import Codes
from legato_engine.kernels.cpu.linear.int8 import round_rows
from legato_engine.kernels.paths import INT8, INT8_AVX2
from legato_engine.kernels.reference import linear as naive
from legato_engine.kernels.tags import AVX2

HERE = processor.detect()
WITH_AVX2 = pytest.mark.skipif(not HERE.avx2, reason="this processor has no AVX2")
BOTH = pytest.mark.parametrize(
    "path", [pytest.param(INT8, id="VNNI"), pytest.param(INT8_AVX2, id="AVX2", marks=WITH_AVX2)]
)
OF_FOUR = "Q4_1", "Q4_K"  # types of 4-bit codes, which both paths multiply
INPUTS = 512


@cache
def emulated():
    return emulated_kernels.load("linear.int8")[0]


@pytest.fixture(autouse=True)
def _vnni_everywhere(monkeypatch):
    if not HERE.vnni:
        real = codes_of.int8.multiply

        def multiply(family, *given):
            return (real if family is AVX2 else emulated().multiply)(family, *given)

        monkeypatch.setattr(codes_of.int8, "multiply", multiply)


def paths_and_types():
    """Each path with the types that it has products of bytes for."""
    avx2 = (pytest.param(INT8_AVX2, name, id=f"AVX2-{name}", marks=WITH_AVX2) for name in OF_FOUR)
    vnni = (pytest.param(INT8, name, id=f"VNNI-{name}") for name in (*OF_FOUR, "Q8_0", "Q5_1"))
    return pytest.mark.parametrize(("path", "type_"), [*vnni, *avx2])


def weight(kind):
    return packed_weights.packed(kind, 80, INPUTS)


def product(packed, x, rows, path):
    """Multiplies the first `rows` of x [room, in] by the codes of `packed`, into columns 16 and on of the output."""
    out = np.full((len(x), len(packed.codes) + 16), np.nan, np.float32)
    codes = Codes(packed, path)
    assert codes.int8
    codes(x.numpy(), rows, out, 16)
    return torch.from_numpy(out[:rows, 16:])


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8, 9, 24, 25, 40])
@paths_and_types()
def test_products_are_those_of_rounded_rows(path, type_, rows):
    """In any batch, and by both paths, to the last bit."""
    packed, x = weight(type_), torch.randn(48, INPUTS) * torch.rand(48, 1).exp()
    expected, found = naive.linear(naive.rounded(x[:rows]), packed.floats()), product(packed, x, rows, path)
    torch.testing.assert_close(found, expected, atol=2e-5 * float(expected.abs().max()), rtol=1e-5)
    assert torch.equal(found, torch.cat([product(packed, x[row : row + 8], 1, INT8) for row in range(rows)]))


@WITH_AVX2
@pytest.mark.parametrize("rows", [1, 4, 8, 40])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_codes_and_activations_fit_their_sums(rows, sign):
    """16 products of 15 and 127 are 30,480; an int16 holds 32,767."""
    packed = weight("Q4_1")
    packed.codes.fill_(15)
    packed.minimum.values.abs_()  # sums as large as they can be
    x = torch.full((40, INPUTS), 2.0 * sign)
    expected = naive.linear(naive.rounded(x[:rows]), packed.floats())
    torch.testing.assert_close(product(packed, x, rows, INT8_AVX2), expected, atol=0, rtol=1e-5)


def test_rows_are_rounded_as_written_down():
    """Also where a number is about half-way between two codes, as one in a million is."""
    x = torch.randn(1 << 14, INPUTS, generator=torch.Generator().manual_seed(0))
    codes, parts = round_rows(x.numpy(), len(x), INPUTS // 32, 8, False)
    scaled = torch.from_numpy(codes.astype(np.float32) * parts[:, :, 0, :, None])
    expected = naive.rounded(x)
    torch.testing.assert_close(scaled.transpose(1, 2).reshape(x.shape), expected, atol=0, rtol=1e-6)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_are_the_same_in_any_batch(sign):
    packed = weight("Q8_0")
    packed.codes.fill_(127)
    x = torch.full((40, INPUTS), float(sign))
    assert torch.equal(product(packed, x, 33, INT8), product(packed, x, 1, INT8).expand(33, -1))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rows", [1, 3])
@BOTH
def test_what_is_no_number_stays_none_and_in_its_row(path, rows, number):
    x = torch.randn(8, INPUTS)
    x[0, 100] = number
    found = product(weight("Q4_1"), x, rows, path)
    assert not found[0].isfinite().any()
    assert found[1:].isfinite().all()


@pytest.mark.parametrize(("path", "type_"), [(INT8, "Q6_K"), (INT8_AVX2, "Q6_K"), (INT8_AVX2, "Q8_0")])
def test_groups_of_16_inputs_keep_float32_and_without_vnni_8_bits_do(path, type_):
    assert not Codes(weight(type_), path).int8
