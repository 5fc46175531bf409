"""Adapters in the layout of this backend's kernel."""

from dataclasses import dataclass

import numpy as np

from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu import low_rank as kernels
from legato_engine.layers.inputs import Ints
from legato_engine.layers.low_rank import LowRank, LowRankAdapter


@dataclass(frozen=True, slots=True)
class CpuLowRank:
    """An adapter's update of one linear layer, in the layout of `kernels.add`."""

    down: Array
    up: Array
    parts: Array

    def __call__(self, x: Array, tokens: Ints, out: Array) -> None:
        """x [room, in], float32 or bfloat16 as uint16; out float32 [room, out]."""
        kernels.add(x, tokens, self.down, self.up, self.parts, out)

    @property
    def nbytes(self) -> int:
        return int(self.down.nbytes + self.up.nbytes)


def packed(adapter: LowRankAdapter[LowRank]) -> LowRankAdapter[CpuLowRank]:
    """The adapter in the layout of this backend's kernel."""
    return LowRankAdapter({name: _packed(update) for name, update in adapter.updates.items()})


def _packed(update: LowRank) -> CpuLowRank:
    parts, at = [], 0
    for up in update.ups:
        parts.append((up.ranks.start, up.ranks.stop, up.first, len(up.b), at))
        at += up.b.numel()
    transposed = np.concatenate([up.b.T.contiguous().numpy().reshape(-1) for up in update.ups])
    return CpuLowRank(update.down.contiguous().numpy(), transposed, np.array(parts, np.int64))
