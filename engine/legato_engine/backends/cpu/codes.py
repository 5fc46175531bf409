"""The file's own 4-bit and 8-bit codes of weights, multiplied as they are, or dequantized in parts for many rows."""

from collections.abc import Sequence

import numba
import numpy as np
import torch

from legato_engine.backends import projections
from legato_engine.backends.cpu.program import Program
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu import program as operators
from legato_engine.kernels.cpu.linear import codes4, codes8, int8
from legato_engine.kernels.cpu.linear.packing import COLUMNS, pack_codes4, pack_codes8, pack_scales
from legato_engine.kernels.paths import Path, Product
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.packed import Packed, Scales, concatenate

NO_FACTORS = np.zeros((1, 1, COLUMNS), np.uint16)
NO_MINIMA = np.zeros((1, 0, COLUMNS), np.uint16)


class Codes:
    """A weight [out, in] as codes, multiplied by the kernel that the path has for it. Sizes are multiples of 32. With
    `int8`, activations are rounded to 8 bits.
    """

    def __init__(self, packed: Packed, path: Path) -> None:
        self._kernel = path.kernel(1, packed.bits, packed.group)
        self.int8 = self._kernel.product is Product.INT8
        self._group = packed.group
        self.outputs, self.inputs = packed.codes.shape
        self.bits = packed.bits
        self._codes = pack_codes8(packed.codes) if self.bits == 8 else pack_codes4(packed.codes)
        minima = (NO_MINIMA, NO_FACTORS) if packed.minimum is None else _panels(packed.minimum)
        self._scales = (*_panels(packed.scale), *minima)

    def multiplies(self, rows: int) -> bool:
        """True if the kernel multiplies the codes in a step of `rows`; more rows take dequantized weights, or tiles."""
        return self._kernel.takes(rows, self.bits, self._group)

    def __call__(self, x: Array, rows: int, out: Array, first: int = 0) -> None:
        """x [room, in], float32, or bfloat16 as uint16 without `int8`; out float32 [room, …], from `first` on."""
        if self.int8:
            threads = numba.get_num_threads()
            int8.multiply(self._kernel.family, x, rows, self._codes, *self._scales, out, first, threads)
        else:
            multiply = codes8.multiply8 if self.bits == 8 else codes4.multiply4
            multiply(x, rows, self._codes, *self._scales, out, first)

    def record(self, program: Program, x: Array, out: Array, first: int) -> None:
        """Records the product with `int8`, for any number of rows that a program takes."""
        values, factors, minima, minimum_factors = self._scales
        rounded, parts = program.rounded(self.inputs)
        common = {"rounded": rounded, "rounded_parts": parts, "groups": values.shape[1], "bits": self.bits}
        program.add(operators.ROUND, x=x, **common)
        program.add(
            operators.MULTIPLY, **common, codes=self._codes, panels=len(self._codes),
            scales=values, scale_bits=8 * values.itemsize,
            scale_factors=factors, scale_factor_groups=factors.shape[1],
            minima=minima, minimum_groups=minima.shape[1],
            minimum_factors=minimum_factors, minimum_factor_groups=minimum_factors.shape[1],
            out=out.reshape(-1)[first:], out_stride=out.shape[1] * 4,
        )  # fmt: skip

    def dequantize(self, first: int, out: Array) -> None:
        """Writes the weights of the outputs from `first` on, a multiple of 16, transposed: float32 [in, outputs]."""
        dequantize = codes8.dequantize8 if self.bits == 8 else codes4.dequantize4
        dequantize(self._codes, *self._scales, first // COLUMNS, out)

    def rows(self, indexes: Array) -> Array:
        """These rows of the weight, float32."""
        panel, column = indexes // COLUMNS, indexes % COLUMNS
        codes = self._codes[panel, :, column]
        if self.bits == 4:
            codes = (codes[:, :, None] >> np.arange(0, 32, 4, np.uint32) & 15).reshape(len(indexes), -1)
        groups = codes.astype(np.float32).reshape(len(indexes), self._scales[0].shape[1], -1)
        scale, factors, minima, least_factors = self._scales
        groups *= _floats(scale, factors, panel, column)[:, :, None]
        if minima.shape[1]:
            groups += _floats(minima, least_factors, panel, column)[:, :, None]
        return groups.reshape(len(indexes), -1)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._codes, *self._scales) if part is not NO_FACTORS)


def load(checkpoint: Checkpoint, names: Sequence[str], path: Path) -> list[Codes | torch.Tensor]:
    """The projections `names` of one input, outputs in this order. Neighbours with codes of one form are fused;
    projections without codes are as in the file.
    """
    parts = list[Packed | torch.Tensor]()
    for name in names:
        packed = checkpoint.packed(f"{name}.weight")
        last = parts[-1] if parts else None
        if packed is not None and isinstance(last, Packed) and last.form == packed.form:
            parts[-1] = concatenate((last, packed))
        else:
            parts.append(checkpoint.tensor(f"{name}.weight") if packed is None else packed)
    return [Codes(part, path) if isinstance(part, Packed) else part for part in parts]


def load_table(checkpoint: Checkpoint, name: str, path: Path) -> Codes | None:
    """An embedding or output head with its rows padded; None if the file has no codes of it."""
    packed = checkpoint.packed(f"{name}.weight")
    return None if packed is None else Codes(packed.each(projections.padded), path)


def _panels(scales: Scales) -> tuple[Array, Array]:
    return pack_scales(scales.values), NO_FACTORS if scales.factors is None else pack_scales(scales.factors)


def _floats(scales: Array, factors: Array, panel: Array, column: Array) -> Array:
    """float32 [rows, groups]."""
    if scales.dtype != np.int8:
        return scales[panel, :, column].view(np.float16).astype(np.float32)
    by = factors[panel, :, column].view(np.float16).astype(np.float32)
    floats: Array = scales[panel, :, column] * by.repeat(scales.shape[1] // factors.shape[1], axis=1)
    return floats
