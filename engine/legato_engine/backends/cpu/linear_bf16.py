"""Linear layers on a processor with AMX: bfloat16 tiles for many rows, the file's codes for few."""

from collections.abc import Sequence

import numba
import numpy as np
import torch

from legato_engine.backends import projections
from legato_engine.backends.cpu import codes
from legato_engine.backends.cpu.codes import Codes
from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu.linear import bf16_tiles as kernels
from legato_engine.kernels.paths import Path, Product
from legato_engine.weights.checkpoint import Checkpoint


class LinearBf16:
    """Weights as tiles, and as codes where there are any. Sizes are multiples of 32."""

    def __init__(self, path: Path, weight: torch.Tensor, codes: Codes | None, bias: torch.Tensor | None) -> None:
        self.outputs = weight.shape[0]
        self._path = path
        self._tiles = kernels.pack_tiles(weight)
        self._codes = codes
        self._bias = None if bias is None else bias.numpy()

    def __call__(self, x: Array, rows: int, out: Array) -> None:
        """x uint16 (bfloat16) [room, in], out float32 [room, out]."""
        if self._codes is not None and self._codes.multiplies(rows):
            self._codes(x, rows, out)
        elif self._path.kernel(rows).product is Product.PAIRS:
            kernels.narrow(x, rows, self._tiles, out)
        else:
            kernels.wide(x, rows, self._tiles, kernels.SHAPES, numba.get_num_threads(), out)
        if self._bias is not None:
            out[:rows] += self._bias

    def rows(self, indexes: Array) -> Array:
        """These rows of the weight, float32: an embedding."""
        halves = self._tiles[indexes // kernels.COLUMNS, :, :, indexes % kernels.COLUMNS].reshape(len(indexes), -1)
        return (halves.astype(np.uint32) << 16).view(np.float32)

    @property
    def nbytes(self) -> int:
        return int(self._tiles.nbytes) + (self._codes.nbytes if self._codes else 0)


def load(checkpoint: Checkpoint, names: Sequence[str], bias: bool, path: Path) -> LinearBf16:
    """The projections `names` (without `.weight`) of one input, outputs in this order."""
    weight = projections.weights(checkpoint, names, torch.bfloat16)
    parts = codes.load(checkpoint, names, path)
    few = parts[0] if len(parts) == 1 and isinstance(parts[0], Codes) else None
    if few is not None and not path.keeps_codes(few.bits, table=False):
        few = None
    return LinearBf16(path, weight, few, projections.biases(checkpoint, names) if bias else None)


def table(checkpoint: Checkpoint, name: str, path: Path) -> LinearBf16:
    """An embedding or output head, its rows padded."""
    weight = projections.padded(projections.weights(checkpoint, [name], torch.bfloat16))
    return LinearBf16(path, weight, codes.load_table(checkpoint, name, path), None)
