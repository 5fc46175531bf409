"""Adapters laid out as linear layers are fused."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from legato_engine.layers.low_rank import Adapter, LowRank, Pair, Up


class LinearShape(NamedTuple):
    """A linear layer: projections of one input, fused, their outputs one after another."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]


def fuse(
    pairs: Mapping[str, Pair], layers: Sequence[LinearShape], dtype: torch.dtype, device: torch.device | None = None
) -> Adapter[LowRank]:
    """The pairs, by projection, laid out for these layers."""
    found = {}
    for layer in layers:
        downs, ups, first, rank = [], [], 0, 0
        for name, size in zip(layer.names, layer.outputs, strict=True):
            if (pair := pairs.get(name)) is not None:
                downs.append(pair.a.to(device, dtype))
                ups.append(Up(slice(rank, rank + len(pair.a)), first, pair.b.to(device, dtype).contiguous()))
                rank += len(pair.a)
            first += size
        if downs:
            found[layer.names[0]] = LowRank(torch.cat(downs), tuple(ups))
    return Adapter(found)
