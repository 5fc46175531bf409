"""Linear layers in float32 on a processor: the file's own 4-bit or 8-bit codes for few rows, float32 for many."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from legato_engine.kernels.linear import cpu_float32
from legato_engine.kernels.linear.cpu import pack_scales
from legato_engine.models.checkpoint import Checkpoint, Packed4, Packed8

Array = np.ndarray[Any, Any]
CODES_UP_TO = 32  # rows: beyond that, float32 weights are read from memory once for many rows


class LinearFloat32:
    """Weights in one or two packings: float32 `weight` [out, in], and `packed`. One of them may be missing."""

    def __init__(
        self, weight: torch.Tensor | None, packed: Packed4 | Packed8 | None, bias: torch.Tensor | None
    ) -> None:
        self._weight = weight
        self._bias = None if bias is None else bias.float().numpy()
        self._codes: tuple[Array, ...] = ()
        if isinstance(packed, Packed4):
            scales = pack_scales(packed.scale), pack_scales(packed.minimum)
            self._codes = (cpu_float32.pack_codes4(packed.codes), *scales)
        elif packed is not None:
            self._codes = (cpu_float32.pack_codes8(packed.codes), pack_scales(packed.scale))

    def __call__(self, x: Array, rows: int, out: Array) -> None:
        """x float32 [room, in], out float32 [room, out]."""
        if self._codes and (rows <= CODES_UP_TO or self._weight is None):
            self._few(x, rows, out)
        else:
            assert self._weight is not None
            torch.mm(torch.from_numpy(x[:rows]), self._weight.T, out=torch.from_numpy(out[:rows]))
        if self._bias is not None:
            out[:rows] += self._bias

    def _few(self, x: Array, rows: int, out: Array) -> None:
        if len(self._codes) == 2:
            cpu_float32.packed8(x, rows, *self._codes, out)
            return
        scaled, sums = np.empty((rows, x.shape[1]), np.float32), np.empty((rows, x.shape[1] // 32), np.float32)
        cpu_float32.packed4(x, rows, *self._codes, scaled, sums, out)

    def rows(self, indexes: torch.Tensor) -> Array:
        """These rows of the weight, float32: an embedding."""
        if self._weight is not None:
            found: Array = self._weight[indexes].numpy()
            return found
        codes, scales = self._codes
        panel, column = indexes.numpy() // cpu_float32.COLUMNS, indexes.numpy() % cpu_float32.COLUMNS
        by = scales[panel, :, column].view(np.float16).astype(np.float32)
        return codes[panel, :, column] * by.repeat(cpu_float32.GROUP, axis=1)

    @property
    def nbytes(self) -> int:
        whole = 0 if self._weight is None else self._weight.nbytes
        return int(whole + sum(part.nbytes for part in self._codes))


def load(checkpoint: Checkpoint, names: Sequence[str], codes: bool) -> LinearFloat32:
    """The projections `names` (without `.weight`) of one input, outputs in this order; `codes` where there are any."""
    weight = torch.cat([checkpoint.tensor(f"{name}.weight").float() for name in names])
    packed = _packed4(checkpoint, names) if codes else None
    present = [f"{name}.bias" in checkpoint.names() for name in names]
    return LinearFloat32(weight, packed, _biases(checkpoint, names) if any(present) else None)


def table(checkpoint: Checkpoint, name: str, codes: bool) -> LinearFloat32:
    """An embedding or output head: 8-bit codes alone where there are such, since few rows ask for it."""
    packed = checkpoint.packed8(f"{name}.weight") if codes else None
    weight = None if packed is not None else checkpoint.tensor(f"{name}.weight").float()
    return LinearFloat32(weight, packed, None)


def _packed4(checkpoint: Checkpoint, names: Sequence[str]) -> Packed4 | None:
    parts = [checkpoint.packed4(f"{name}.weight") for name in names]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    together = Packed4(
        torch.cat([part.codes for part in found]),
        torch.cat([part.scale for part in found]),
        torch.cat([part.minimum for part in found]),
    )
    exact = all(torch.equal(scales.half().float(), scales) for scales in (together.scale, together.minimum))
    return together if exact else None


def _biases(checkpoint: Checkpoint, names: Sequence[str]) -> torch.Tensor:
    none = [torch.zeros(checkpoint.shape(f"{name}.weight")[0]) for name in names]
    held = [f"{name}.bias" for name in names]
    return torch.cat(
        [checkpoint.tensor(b).float() if b in checkpoint.names() else z for b, z in zip(held, none, strict=True)]
    )
