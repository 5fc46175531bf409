"""Factors between keys and values and the numbers in an arena, for all layers."""

import numpy as np
import torch

from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu.simd.float8 import READ_SCALE
from legato_engine.kvcache.groups import LayerGroups
from legato_engine.layers.kv_factors import KVFactors


def by_group(factors: KVFactors[Array], groups: LayerGroups) -> KVFactors[Array]:
    """Factors [groups, layers of a block, 2, kv_heads]; 1 in unused places."""
    grouped = []
    for of_layers in factors:
        placed = np.ones((1 + len(groups.windows), groups.per_block, *of_layers.shape[1:]), np.float32)
        for place, each in zip(groups.places, of_layers, strict=True):
            placed[place.group, place.place] = each
        grouped.append(placed)
    return KVFactors(*grouped)


def from_scales(layers: int, kv_heads: int, scales: torch.Tensor | None) -> KVFactors[Array]:
    """The factors [layers, 2, kv_heads] for e4m3 with scales of this shape; None: the arena holds floats."""
    if scales is None:
        ones = np.ones((layers, 2, kv_heads), np.float32)
        return KVFactors(ones, ones)
    return KVFactors((scales * READ_SCALE).numpy(), (1 / scales).numpy())
