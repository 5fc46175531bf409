"""Linear layers on a processor with AMX: bfloat16 tiles for many rows, the file's codes for few."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from legato_engine.kernels.linear import cpu, cpu_float32
from legato_engine.models.checkpoint import Checkpoint, Packed4, Packed8

Array = np.ndarray[Any, Any]
CODES_UP_TO = 2  # rows: beyond that, tiles are faster than unpacking codes


class LinearBf16:
    """Weights in one or two packings. Sizes are multiples of 32."""

    def __init__(self, weight: torch.Tensor, packed: Packed4 | Packed8 | None, bias: torch.Tensor | None) -> None:
        self.outputs, self.inputs = weight.shape
        self.tiles = cpu.pack_tiles(weight)
        self._bias = None if bias is None else bias.float().numpy()
        self._codes: tuple[Array, ...] = ()
        if isinstance(packed, Packed4):
            scales = cpu.pack_scales(packed.scale), cpu.pack_scales(packed.minimum)
            self._codes = (cpu_float32.pack_codes4(packed.codes), *scales)
        elif packed is not None:
            self._codes = (cpu_float32.pack_codes8(packed.codes), cpu.pack_scales(packed.scale))

    def __call__(self, x: Array, rows: int, out: Array) -> None:
        """x uint16 (bfloat16) [room, in], out float32 [room, out]."""
        if rows <= CODES_UP_TO and self._codes:
            (cpu.packed4 if len(self._codes) == 3 else cpu.packed8)(x, rows, *self._codes, out)
        elif rows == 1:
            cpu.narrow(x, rows, self.tiles, out)
        else:
            cpu.wide(x, rows, self.tiles, cpu.SHAPES, out)
        if self._bias is not None:
            out[:rows] += self._bias

    @property
    def nbytes(self) -> int:
        return int(self.tiles.nbytes + sum(part.nbytes for part in self._codes))


def load(checkpoint: Checkpoint, names: Sequence[str]) -> LinearBf16:
    """The projections `names` (without `.weight`) of one input, outputs in this order."""
    weight = torch.cat([checkpoint.tensor(f"{name}.weight").float() for name in names])
    parts = [checkpoint.packed4(f"{name}.weight") for name in names]
    found = [part for part in parts if part is not None]
    packed = None
    if len(found) == len(parts) and all(_exact(part) for part in found):
        packed = Packed4(
            torch.cat([part.codes for part in found]),
            torch.cat([part.scale for part in found]),
            torch.cat([part.minimum for part in found]),
        )
    biases = [checkpoint.tensor(f"{name}.bias") for name in names if f"{name}.bias" in checkpoint.names()]
    return LinearBf16(weight, packed, torch.cat(biases) if biases else None)


def _exact(packed: Packed4) -> bool:
    """Whether float16 holds the scales without loss, as in files of Q4_1."""
    return all(torch.equal(scales.half().float(), scales) for scales in (packed.scale, packed.minimum))
