"""Adapters in the layout of torch's operators: fused like linear layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from legato_engine.backends.low_rank import LinearShape
from legato_engine.kernels.torch import low_rank
from legato_engine.layers.low_rank import LowRankAdapter, Pair


class Up(NamedTuple):
    """Maps `ranks` of the inner values to the outputs from `first` on: B [out, rank]."""

    ranks: slice
    first: int
    b: torch.Tensor


@dataclass(frozen=True, slots=True)
class LowRank:
    """The update of one linear layer with several projections: their concatenated A [ranks, in], and the B of each."""

    down: torch.Tensor
    ups: tuple[Up, ...]

    def __call__(self, x: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor) -> None:
        low_rank.add(x, tokens, self.down, self.ups, out)


class TorchAdapter(LowRankAdapter):
    """Updates by the first projection of their linear layer."""

    def __init__(self, updates: Mapping[str, LowRank]) -> None:
        self.updates = updates
        self.nbytes = sum(each.down.nbytes + sum(up.b.nbytes for up in each.ups) for each in updates.values())


def fuse(
    pairs: Mapping[str, Pair], layers: Sequence[LinearShape], dtype: torch.dtype, device: torch.device
) -> TorchAdapter:
    """Fuses the pairs of each layer's projections into one update."""
    updates = {}
    for layer in layers:
        downs, ups, first, rank = [], [], 0, 0
        for name, size in zip(layer.names, layer.outputs, strict=True):
            if (pair := pairs.get(name)) is not None:
                downs.append(pair.a.to(device, dtype))
                ups.append(Up(slice(rank, rank + len(pair.a)), first, pair.b.to(device, dtype).contiguous()))
                rank += len(pair.a)
            first += size
        if downs:
            updates[layer.names[0]] = LowRank(torch.cat(downs), tuple(ups))
    return TorchAdapter(updates)
