"""Kernels of quantized weights to time: products with codes, their dequantization, and products in FP8."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear import fp8
from legato_engine.kernels.gpu.linear.codes import CodeKind, CodeMatrix, GroupScales, pair_units, unit_of
from legato_engine.kernels.gpu.linear.multiply import dequantize, multiply, parts_needed
from legato_engine.kernels.gpu.tuning.device import WARPS, TuningDevice
from legato_engine.kernels.gpu.tuning.search import Case, TuningTrial

_GROUP = 128  # inputs with a scale, in most checkpoints


def multiply_codes(place: TuningDevice) -> Iterator[Case]:
    """Products of few rows with codes of 4 and 8 bits."""
    sizes = place.sizes
    for rows, bits in itertools.product(sizes.code_rows, sizes.code_bits):
        candidates = [
            Configuration({"PROGRAMS": programs, "TILE_M": rows, "TILE_N": tile}, warps, stages)
            for programs, tile, warps, stages in itertools.product((1, 2, 4), (32, 64, 128), (4, 8), (2, 3, 4))
        ]

        def make(config: Configuration, rows: int = rows, bits: int = bits) -> TuningTrial:
            x, weight = place.random(rows, sizes.hidden), _weight(place, bits)
            out = torch.zeros(rows, weight.outputs, dtype=x.dtype, device=place.device)
            parts = torch.zeros(parts_needed(rows, place.processors, config), device=place.device)
            launch = partial(multiply, x, weight, None, out, parts, place.processors, config)
            return TuningTrial(launch, lambda: out)

        yield Case("multiply_codes", {"rows": rows, "bits": bits}, candidates, place.seeded(make))


def dequantize_codes(place: TuningDevice) -> Iterator[Case]:
    """The dequantization of codes of 4 bits."""
    candidates = [Configuration({"TILE_N": tile}, warps) for tile, warps in itertools.product((32, 64, 128), WARPS)]

    def make(config: Configuration) -> TuningTrial:
        weight = _weight(place, 4)
        out = torch.zeros(weight.outputs, weight.inputs, dtype=place.sizes.dtype, device=place.device)
        return TuningTrial(partial(dequantize, weight, 0, out, config), lambda: out)

    yield Case("dequantize_codes", {}, candidates, place.seeded(make))


def quantize_rows(place: TuningDevice) -> Iterator[Case]:
    """The quantization of activations by groups. Chips without FP8 have no cases."""
    candidates = [
        Configuration({"WIDTH": width}, warps) for width, warps in itertools.product((4096, 2048, 512), WARPS)
    ]

    def make(config: Configuration) -> TuningTrial:
        x, out = place.random(place.sizes.tokens, place.sizes.hidden), _activations(place)
        return TuningTrial(partial(fp8.quantize_rows, x, out, config), lambda: out.codes.float())

    if place.float8:
        yield Case("quantize_rows", {}, candidates, place.seeded(make))


def multiply_fp8(place: TuningDevice) -> Iterator[Case]:
    """Products of many rows in FP8, with scales by groups. Chips without FP8 have no cases."""
    candidates = [
        Configuration({"TILE_M": rows, "TILE_N": tile}, warps, stages)
        for rows, tile, warps, stages in itertools.product((64, 128), (64, 128), (4, 8), (3, 4))
    ]

    def make(config: Configuration) -> TuningTrial:
        x, weight = place.random(place.sizes.tokens, place.sizes.hidden), _weight(place, 8)
        given = _activations(place)
        fp8.quantize_rows(x, given, Configuration({"WIDTH": 1024}))
        out = torch.zeros(len(x), weight.outputs, dtype=x.dtype, device=place.device)
        return TuningTrial(partial(fp8.multiply_fp8, given, weight, None, out, config), lambda: out)

    if place.float8:
        yield Case("multiply_fp8", {}, candidates, place.seeded(make))


def _weight(place: TuningDevice, bits: int) -> CodeMatrix:
    """A weight of the MLP: integers of 4 bits or e4m3, with a scale by group."""
    outputs, inputs = place.sizes.inner, place.sizes.hidden
    groups = -(-inputs // _GROUP)
    if bits == 4:
        unit = unit_of(CodeKind.INT4, inputs, _GROUP)
        codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8, device=place.device)
        scale = torch.rand(groups, outputs, device=place.device).half() / 64
        return CodeMatrix(CodeKind.INT4, pair_units(codes, unit), outputs, inputs, _GROUP, GroupScales(scale), zero=8)
    codes = torch.randn(outputs, inputs, device=place.device).to(torch.float8_e4m3fn).view(torch.uint8)
    scale = torch.rand(groups, outputs, device=place.device) / 64
    return CodeMatrix(CodeKind.FLOAT8, codes, outputs, inputs, _GROUP, GroupScales(scale))


def _activations(place: TuningDevice) -> Float8Rows:
    rows, inputs = place.sizes.tokens, place.sizes.hidden
    codes = torch.zeros(rows, inputs, device=place.device).to(torch.float8_e4m3fn)
    return Float8Rows(codes, torch.zeros(-(-inputs // _GROUP), rows, device=place.device), _GROUP)
