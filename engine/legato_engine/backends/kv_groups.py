"""The groups of layers that a model's KV is kept in, and a layer's part of the arena."""

import torch

from legato_engine.kvcache.groups import LayerGroups, group_layers
from legato_engine.models.config import ModelConfig


def groups_of(config: ModelConfig) -> LayerGroups:
    """The groups of a model's layers, on every backend and device. A window that is never exceeded counts as none."""
    windows = [config.window(layer) for layer in range(config.layers)]
    return group_layers([None if each is None or each >= config.max_length else each for each in windows])


def of_layer(arena: torch.Tensor, place: int) -> torch.Tensor:
    """A layer's part of an arena in KVLayout's shape: [blocks, 2, kv_heads, block_size, head_dim], strided."""
    return arena[:, :, place].transpose(1, 2)
