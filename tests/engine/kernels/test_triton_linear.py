"""Products with quantized weights by Triton, at awkward sizes, in 16 bits and with inputs split among programs."""

from pathlib import Path

import pytest
import torch
from made_codes import made

from legato_engine.backends.cuda import products
from legato_engine.backends.cuda.linear import packed
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear import fp8
from legato_engine.kernels.gpu.linear.multiply import dequantize, multiply, parts_needed, splits

HOST = torch.device("cpu")
PROCESSORS = 4
TILES = Configuration({"TILE_M": 16, "TILE_N": 32, "PROGRAMS": 3})
CASES = [  # a group may end within the last pair of units, and outputs within a tile
    ("W4A16", 5, (40, 640), torch.bfloat16, 1),
    ("W4A16", 17, (24, 2176), torch.float16, 2),
    ("GPTQ, act order", 3, (33, 160), torch.bfloat16, 1),
    ("AWQ", 2, (32, 2048), torch.float32, 2),
    ("Q4_K", 3, (24, 512), torch.float16, 1),
    ("W8A16", 1, (50, 192), torch.bfloat16, 1),
    ("MXFP4", 3, (40, 192), torch.bfloat16, 1),
    ("MXFP4", 3, (24, 160), torch.float16, 1),
    ("Q6_K", 3, (24, 256), torch.bfloat16, 2),
    ("FP8, blocks", 4, (31, 320), torch.bfloat16, 1),
    ("FP8, channel", 4, (31, 1024), torch.float16, 1),
]


@pytest.mark.parametrize(("form", "rows", "shape", "dtype", "parts"), CASES)
def test_products_with_codes(form, rows, shape, dtype, parts):
    torch.manual_seed(0)
    outputs, inputs = shape
    weight, x, bias = made(form, outputs, inputs), torch.randn(rows, inputs).to(dtype), torch.randn(outputs).to(dtype)
    codes, values = packed(weight, HOST), weight.floats()
    out, dequantized = torch.zeros(rows, outputs + 1, dtype=dtype), torch.zeros(outputs, inputs, dtype=dtype)
    sums = torch.full((parts_needed(rows, PROCESSORS, TILES),), torch.nan)

    multiply(x, codes, bias, out[:, :outputs], sums, PROCESSORS, TILES)
    dequantize(codes, 0, dequantized, Configuration({"TILE_N": 32}))

    assert splits(codes, PROCESSORS, TILES) == parts
    eps = 2e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    expected = (x.float() @ values.t() + bias.float()).to(dtype)
    torch.testing.assert_close(out[:, :outputs], expected, atol=eps, rtol=eps)
    assert not out[:, outputs].any()
    assert torch.equal(dequantized, values.to(dtype))


@pytest.mark.parametrize(("form", "width"), [("FP8, blocks", 256), ("FP8, channel", 16)])
def test_products_of_fp8(form, width):
    """More rows than a band of tiles has, values beyond the range of FP8, and a row of zeros."""
    torch.manual_seed(0)
    rows, outputs, inputs = 19, 70, 288
    weight, x = made(form, outputs, inputs), torch.randn(rows, inputs).half() * 1000
    x[1] = 0
    groups = weight.scale.values.shape[1]
    given = codes, scales, _ = Float8Rows(
        torch.zeros(rows, inputs).to(torch.float8_e4m3fn), torch.zeros(groups, rows), weight.group
    )
    out = torch.zeros(rows, outputs, dtype=torch.float16)

    fp8.quantize_rows(x, given, Configuration({"WIDTH": width}))
    fp8.multiply_fp8(given, packed(weight, HOST), None, out, Configuration({"TILE_M": 2, "TILE_N": 32}))

    largest = torch.stack([part.float().abs().amax(1) for part in x.split(weight.group, 1)])
    assert torch.equal(scales, largest.clamp(min=1e-30) / 448)
    spread = scales.t().repeat_interleave(weight.group, 1)[:, :inputs]
    assert torch.equal(codes.float(), (x / spread).to(torch.float8_e4m3fn).float())
    torch.testing.assert_close(out, ((codes.float() * spread) @ weight.floats().t()).half(), atol=0.5, rtol=2e-3)


@pytest.mark.parametrize("table", [products.TABLE, products.EXPERTS])
def test_tables_of_products_are_documented(table):
    assert "\n".join(products.table(table)) in Path(products.__file__).with_name("README.md").read_text()
