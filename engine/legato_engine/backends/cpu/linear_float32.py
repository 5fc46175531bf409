"""Linear layers in float32 on a processor: the file's own 4-bit or 8-bit codes for few rows, float32 for many."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from legato_engine.backends import projections
from legato_engine.backends.cpu import codes
from legato_engine.backends.cpu.codes import Codes
from legato_engine.weights.checkpoint import Checkpoint

Array = np.ndarray[Any, Any]
CODES_UP_TO = 32  # rows: beyond that, float32 weights are read from memory once for many rows


class LinearFloat32:
    """Weights as float32 [out, in], as codes, or as both."""

    def __init__(
        self, outputs: int, weight: torch.Tensor | None, codes: Codes | None, bias: torch.Tensor | None
    ) -> None:
        self.outputs = outputs
        self._weight = weight
        self._codes = codes
        self._bias = None if bias is None else bias.numpy()

    def __call__(self, x: Array, rows: int, out: Array) -> None:
        """x float32 [room, in], out float32 [room, out]."""
        if self._codes is not None and (rows <= CODES_UP_TO or self._weight is None):
            self._codes(x, rows, out)
        else:
            assert self._weight is not None
            torch.mm(torch.from_numpy(x[:rows]), self._weight.T, out=torch.from_numpy(out[:rows]))
        if self._bias is not None:
            out[:rows] += self._bias

    def rows(self, indexes: Array) -> Array:
        """These rows of the weight, float32: an embedding."""
        if self._weight is not None:
            found: Array = self._weight.numpy()[indexes]
            return found
        assert self._codes is not None
        return self._codes.rows(indexes)

    @property
    def nbytes(self) -> int:
        return (0 if self._weight is None else self._weight.nbytes) + (self._codes.nbytes if self._codes else 0)


def load(checkpoint: Checkpoint, names: Sequence[str], bias: bool, with_codes: bool) -> LinearFloat32:
    """The projections `names` (without `.weight`) of one input, outputs in this order."""
    weight = projections.weights(checkpoint, names, torch.float32)
    found = codes.load4(checkpoint, names) if with_codes else None
    return LinearFloat32(len(weight), weight, found, projections.biases(checkpoint, names) if bias else None)


def table(checkpoint: Checkpoint, name: str, with_codes: bool) -> LinearFloat32:
    """An embedding or output head: 8-bit codes alone where there are such, since few rows ask for it."""
    found = codes.load8(checkpoint, name) if with_codes else None
    weight = None if found is not None else projections.padded(projections.weights(checkpoint, [name], torch.float32))
    outputs = -(-checkpoint.shape(f"{name}.weight")[0] // 32) * 32
    return LinearFloat32(outputs, weight, found, None)
