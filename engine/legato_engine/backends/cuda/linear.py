"""Linear layers of one or more parts: weights of 16 bits by cuBLAS, and quantized ones from their codes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch

from legato_engine.backends import projections
from legato_engine.backends.cuda import products
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.float8 import Float8Memory
from legato_engine.backends.cuda.products import CodesProduct, LargeSteps
from legato_engine.backends.cuda.workspace import Workspace
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.linear import fp8
from legato_engine.kernels.gpu.linear.codes import CodeKind, CodeMatrix, GroupScales, pair_units, unit_of
from legato_engine.kernels.gpu.linear.multiply import dequantize, multiply, parts_needed
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.grouped import Grouped, concatenate
from legato_engine.weights.packed import Scales

_TILE_ROWS = (16, 32, 64)  # of a step that multiplies codes
_DEQUANTIZED = 32 << 20  # bytes at a time, which stay in the chip's cache until they are multiplied


class LinearPart(Protocol):
    """A matrix [outputs, inputs] of a linear layer."""

    outputs: int

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        """out = x · weightᵀ + bias; out [rows, outputs] may be columns of a larger matrix."""


class DensePart:
    """Implements `LinearPart` with a weight in floating point."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight
        self.outputs = len(weight)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        _multiply(x, self._weight, bias, out)


def _multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


class ProductMemory:
    """Memory for products with codes, shared by all layers. Its addresses do not change, as CUDA graphs require."""

    def __init__(self, dtype: torch.dtype, device: Device, workspace: Workspace) -> None:
        self.dtype = dtype
        self.device = device
        self.float8 = Float8Memory(device, workspace)
        self._sums: torch.Tensor | None = None
        self._weights: torch.Tensor | None = None
        self.tiles = {
            (rows, bits): choose("multiply_codes", {"rows": rows, "bits": bits}, device.chip)
            for rows in _TILE_ROWS
            for bits in (4, 8)
        }

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens whose steps use other kernels than steps with 16-bit weights."""
        most = max(product.most_rows for product in products.TABLE)
        return () if self._sums is None else (_TILE_ROWS[1], most + _TILE_ROWS[0])

    def sums(self) -> torch.Tensor:
        """Memory for the sums of products whose inputs are split."""
        if self._sums is None:
            processors = self.device.processors
            most = max(
                parts_needed(max(product.most_rows, rows) if rows == _TILE_ROWS[-1] else rows, processors, config)
                for (rows, _), config in self.tiles.items()
                for product in products.TABLE
            )
            self._sums = torch.empty(most, device=self.device.place)
        return self._sums

    def weights(self, inputs: int) -> torch.Tensor:
        """Memory for some outputs of a dequantized weight, [outputs, inputs]."""
        if self._weights is None:
            size = _DEQUANTIZED // self.dtype.itemsize
            self._weights = torch.empty(size, dtype=self.dtype, device=self.device.place)
        outputs = len(self._weights) // inputs
        return self._weights[: outputs * inputs].view(outputs, inputs)


class CodesPart:
    """Implements `LinearPart` with codes, multiplied by the kernels of `product`."""

    def __init__(self, weight: CodeMatrix, product: CodesProduct, memory: ProductMemory) -> None:
        chip = memory.device.chip
        self._weight = weight
        self._product = product
        self._memory = memory
        self._sums = memory.sums()
        self._dequantizing = choose("dequantize_codes", {}, chip)
        self._multiplying = choose("multiply_fp8", {}, chip)
        self.outputs = weight.outputs
        if product.large_steps is LargeSteps.DEQUANTIZED:
            self._parts = memory.weights(weight.inputs)
        else:
            self._float8 = memory.float8.activations(weight.inputs, weight.group, product.most_rows)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        if len(x) <= self._product.most_rows:
            tile = next((rows for rows in _TILE_ROWS if rows >= len(x)), _TILE_ROWS[-1])
            config = self._memory.tiles[tile, self._weight.bits]
            multiply(x, self._weight, bias, out, self._sums, self._memory.device.processors, config)
        elif self._product.large_steps is LargeSteps.DEQUANTIZED:
            self._multiply_dequantized(x, bias, out)
        else:
            self._multiply_fp8(x, bias, out)

    def _multiply_dequantized(self, x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        for first in range(0, self.outputs, len(self._parts)):
            last = min(first + len(self._parts), self.outputs)
            weight = self._parts[: last - first]
            dequantize(self._weight, first, weight, self._dequantizing)
            _multiply(x, weight, None if bias is None else bias[first:last], out[:, first:last])

    def _multiply_fp8(self, x: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        weight, given = self._weight, self._float8.take(x)
        if self._product.large_steps is LargeSteps.FP8 or not out.is_contiguous():
            fp8.multiply_fp8(given, weight, bias, out, self._multiplying)
        elif not x.is_meta:  # torch has no meta kernel for this operator, and it compiles nothing
            fp8_weight = weight.codes.view(torch.float8_e4m3fn).t()
            scales = given.scales.view(-1, 1), weight.scale.values
            torch._scaled_mm(given.codes, fp8_weight, *scales, bias=bias, out_dtype=out.dtype, out=out)


@dataclass(frozen=True, slots=True)
class _Projection:
    """A projection's codes and the product with them, or neither if its weight is dequantized."""

    name: str
    product: CodesProduct | None = None
    codes: Grouped | None = None

    @property
    def fusion_key(self) -> tuple[object, ...]:
        """Equal for projections that can be one part."""
        return self.product, self.codes and self.codes.form


def load(checkpoint: Checkpoint, names: Sequence[str], memory: ProductMemory) -> tuple[LinearPart, ...]:
    """The projections `names` (without `.weight`) of one input, with outputs in this order. Neighbours whose codes have
    the same form are fused, and so are neighbours of 16 bits."""
    loaded = [_projection(checkpoint, name, memory) for name in names]
    return tuple([_part(checkpoint, list(run), memory) for _, run in groupby(loaded, lambda each: each.fusion_key)])


def _projection(checkpoint: Checkpoint, name: str, memory: ProductMemory) -> _Projection:
    weight = f"{name}.weight"
    form, shape = checkpoint.grouped_form(weight), checkpoint.shape(weight)
    product = products.choose(form, shape, memory.dtype, memory.device.chip)
    codes = None if product is None else checkpoint.grouped(weight, memory.device.place)
    return _Projection(name) if codes is None else _Projection(name, product, codes)


def _part(checkpoint: Checkpoint, run: Sequence[_Projection], memory: ProductMemory) -> LinearPart:
    product, place = run[0].product, memory.device.place
    if product is None:
        return DensePart(projections.weights(checkpoint, [each.name for each in run], memory.dtype, place))
    codes = [each.codes for each in run if each.codes is not None]
    return CodesPart(packed(concatenate(codes), place), product, memory)


def packed(weight: Grouped, place: torch.device) -> CodeMatrix:
    """The weight in the layout of the kernels."""
    kind = products.KINDS[weight.element]
    outputs, inputs = weight.codes.shape
    codes = weight.codes.to(place)
    if kind.paired:
        codes = pair_units(codes, unit_of(kind, inputs, weight.group))
    elif kind is CodeKind.FLOAT8:
        codes = codes.view(torch.uint8)

    def transposed(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.t().contiguous().to(place)

    def scales(given: Scales) -> GroupScales:
        values = given.values.t().contiguous().to(place)
        exponents = values.dtype == torch.float8_e8m0fnu
        return GroupScales(values.view(torch.uint8) if exponents else values, transposed(given.factors))

    return CodeMatrix(
        kind, codes.contiguous(), outputs, inputs, weight.group, scales(weight.scale), weight.zero,
        transposed(weight.zeros), None if weight.minimum is None else scales(weight.minimum),
        None if weight.order is None else weight.order.to(place),
    )  # fmt: skip
