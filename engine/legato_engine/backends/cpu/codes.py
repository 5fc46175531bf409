"""The file's own 4-bit and 8-bit codes of a weight, packed for steps of few rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from legato_engine.backends import projections
from legato_engine.kernels.linear import numba_codes as kernels
from legato_engine.weights.checkpoint import Checkpoint, Packed4, Packed8

Array = np.ndarray[Any, Any]


class Codes:
    """A weight [out, in] as codes. Sizes are multiples of 32."""

    def __init__(self, packed: Packed4 | Packed8) -> None:
        if isinstance(packed, Packed4):
            self._codes = kernels.pack_codes4(packed.codes)
            self._scales: tuple[Array, ...] = kernels.pack_scales(packed.scale), kernels.pack_scales(packed.minimum)
        else:
            self._codes, self._scales = kernels.pack_codes8(packed.codes), (kernels.pack_scales(packed.scale),)

    def __call__(self, x: Array, rows: int, out: Array) -> None:
        """x [room, in], float32 or bfloat16 as uint16; out float32 [room, out]."""
        multiply = kernels.packed4 if len(self._scales) == 2 else kernels.packed8
        multiply(x, rows, self._codes, *self._scales, out)

    def rows(self, indexes: Array) -> Array:
        """These rows of a weight of 8-bit codes, float32."""
        panel, column = indexes // kernels.COLUMNS, indexes % kernels.COLUMNS
        by = self._scales[0][panel, :, column].view(np.float16).astype(np.float32)
        found: Array = self._codes[panel, :, column] * by.repeat(kernels.GROUP, axis=1)
        return found

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._codes, *self._scales))


def load4(checkpoint: Checkpoint, names: Sequence[str]) -> Codes | None:
    """The projections `names` of one input from 4-bit codes; nothing unless all have them, with exact scales."""
    parts = [checkpoint.packed4(f"{name}.weight") for name in names]
    found = [part for part in parts if part is not None and _exact(part)]
    if len(found) < len(parts):
        return None
    fused = (torch.cat([getattr(part, field) for part in found]) for field in ("codes", "scale", "minimum"))
    return Codes(Packed4(*fused))


def load8(checkpoint: Checkpoint, name: str) -> Codes | None:
    """An embedding or output head from 8-bit codes, where the file has them; rows are padded."""
    packed = checkpoint.packed8(f"{name}.weight")
    if packed is None:
        return None
    return Codes(Packed8(projections.padded(packed.codes), projections.padded(packed.scale)))


def _exact(packed: Packed4) -> bool:
    """Whether float16 holds the scales without loss, as in files of Q4_1."""
    return all(torch.equal(scales.half().float(), scales) for scales in (packed.scale, packed.minimum))
