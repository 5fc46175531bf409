"""Adapters in the layout of this backend's kernel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from legato_engine.backends.cpu.workspace import Array
from legato_engine.backends.low_rank import LinearShape
from legato_engine.backends.torch.low_rank import LowRank, fuse
from legato_engine.kernels.cpu import low_rank as kernels
from legato_engine.layers.inputs import Ints
from legato_engine.layers.low_rank import LowRankAdapter, Pair


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


class CpuAdapter(LowRankAdapter):
    """Updates by the first projection of their linear layer."""

    def __init__(self, updates: Mapping[str, CpuLowRank]) -> None:
        self.updates = updates
        self.nbytes = sum(each.nbytes for each in updates.values())


def packed(pairs: Mapping[str, Pair], layers: Sequence[LinearShape]) -> CpuAdapter:
    """The adapter in the layout of this backend's kernel."""
    fused = fuse(pairs, layers, torch.float32, torch.device("cpu"))
    return CpuAdapter({name: _packed(update) for name, update in fused.updates.items()})


def _packed(update: LowRank) -> CpuLowRank:
    parts, at = [], 0
    for up in update.ups:
        parts.append((up.ranks.start, up.ranks.stop, up.first, len(up.b), at))
        at += up.b.numel()
    transposed = np.concatenate([up.b.T.contiguous().numpy().reshape(-1) for up in update.ups])
    return CpuLowRank(update.down.contiguous().numpy(), transposed, np.array(parts, np.int64))
