"""Adapters in the layout of fused linear layers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from legato_engine.layers.low_rank import LowRank, LowRankAdapter, Pair, Up


class LinearShape(NamedTuple):
    """A linear layer of one or more projections of the same input, whose outputs are concatenated."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]


def fuse(
    pairs: Mapping[str, Pair], layers: Sequence[LinearShape], dtype: torch.dtype, device: torch.device | None = None
) -> LowRankAdapter[LowRank]:
    """Fuses the pairs of each layer's projections into one update, whose key is the layer's first projection."""
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
    return LowRankAdapter(updates)
