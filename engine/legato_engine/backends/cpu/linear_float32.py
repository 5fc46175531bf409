"""Linear layers in float32 on a processor, from the file's own codes if it has them.

Without 8-bit activations, many rows are multiplied with float32 weights, which are dequantized part by part into one
buffer for all layers. At 512 rows that costs a few percent; a float32 copy of the model would be several times as large
as its codes.
"""

from collections.abc import Sequence

import numpy as np
import torch

from legato_engine.backends import projections
from legato_engine.backends.cpu import codes
from legato_engine.backends.cpu.codes import Codes
from legato_engine.backends.cpu.program import Call, Program
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu import program as operators
from legato_engine.kernels.paths import Path, WeightForm
from legato_engine.weights.checkpoint import Checkpoint

_PART = 1 << 18  # weights dequantized at a time: they stay in a core's cache until they are multiplied
_OUTPUTS = 128  # a part has a multiple of these: products of few columns are slow


class Scratch:
    """Memory for the weights of a part, shared by all layers of a model."""

    def __init__(self) -> None:
        self._array: Array = np.empty(0, np.float32)

    def take(self, inputs: int, outputs: int) -> Array:
        """Uninitialized [inputs, outputs]."""
        if self._array.size < inputs * outputs:
            self._array = np.empty(inputs * outputs, np.float32)
        return self._array[: inputs * outputs].reshape(inputs, outputs)


class LinearFloat32:
    """Weights of parts of the outputs, each as codes or as float32 [out, in]."""

    def __init__(self, parts: Sequence[Codes | torch.Tensor], scratch: Scratch, bias: torch.Tensor | None) -> None:
        self._parts = [part.float() if isinstance(part, torch.Tensor) else part for part in parts]
        self._sizes = [part.outputs if isinstance(part, Codes) else len(part) for part in self._parts]
        self.outputs = sum(self._sizes)
        self._scratch = scratch
        self._bias = None if bias is None else bias.numpy()

    def __call__(self, x: Array, rows: int, out: Array) -> None:
        """x float32 [room, in], out float32 [room, out]."""
        first = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            self._part(part, x, rows, out, first, size)
            first += size
        if self._bias is not None:
            out[:rows] += self._bias

    def record(self, program: Program, x: Array, out: Array) -> None:
        """Records the same product, for any number of rows that a program takes."""
        first = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            if isinstance(part, Codes) and part.int8:
                part.record(program, x, out, first)
            else:
                program.call(self._later(part, x, out, first, size))
            first += size
        if self._bias is not None:
            program.add(operators.ADD, out=out, bias=self._bias, width=self.outputs)

    def rows(self, indexes: Array) -> Array:
        """These rows of the weight, which must have one part, float32: an embedding."""
        (part,) = self._parts
        rows: Array = part.rows(indexes) if isinstance(part, Codes) else part.numpy()[indexes]
        return rows

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    @property
    def recorded_form(self) -> object:
        """Equal for layers that `record` the same operators; None if it records functions."""
        sizes = [part.outputs for part in self._parts if isinstance(part, Codes) and part.int8]
        return (*sizes, self._bias is None) if len(sizes) == len(self._parts) else None

    def _later(self, part: Codes | torch.Tensor, x: Array, out: Array, first: int, size: int) -> Call:
        return lambda step: self._part(part, x, step.rows, out, first, size)

    def _part(self, part: Codes | torch.Tensor, x: Array, rows: int, out: Array, first: int, size: int) -> None:
        if isinstance(part, Codes) and part.multiplies(rows):
            part(x, rows, out, first)
        else:
            self._product(part, torch.from_numpy(x[:rows]), torch.from_numpy(out[:rows, first : first + size]))

    def _product(self, weight: Codes | torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
        if isinstance(weight, torch.Tensor):
            torch.mm(x, weight.T, out=out)
            return
        most = max(_OUTPUTS, _PART // weight.inputs // _OUTPUTS * _OUTPUTS)
        for first in range(0, weight.outputs, most):
            part = self._scratch.take(weight.inputs, min(most, weight.outputs - first))
            weight.dequantize(first, part)
            torch.mm(x, torch.from_numpy(part), out=out[:, first : first + part.shape[1]])


def load(checkpoint: Checkpoint, names: Sequence[str], bias: bool, path: Path, scratch: Scratch) -> LinearFloat32:
    """The projections `names` (without `.weight`) of one input, outputs in this order."""
    parts = codes.load(checkpoint, names, path) if path.weights is WeightForm.CODES else []
    if not any(isinstance(part, Codes) for part in parts):
        parts = [projections.weights(checkpoint, names, torch.float32)]
    return LinearFloat32(parts, scratch, projections.biases(checkpoint, names) if bias else None)


def table(checkpoint: Checkpoint, name: str, path: Path, scratch: Scratch) -> LinearFloat32:
    """An embedding or output head, its rows padded."""
    packed = codes.load_table(checkpoint, name, path) if path.weights is WeightForm.CODES else None
    weight = packed or projections.padded(projections.weights(checkpoint, [name], torch.float32))
    return LinearFloat32([weight], scratch, None)
