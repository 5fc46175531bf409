"""The groups of layers that a model's KV is kept in."""

from legato_engine.kvcache.groups import LayerGroups, group_layers
from legato_engine.models.config import ModelConfig


def groups_of(config: ModelConfig) -> LayerGroups:
    """The groups of a model's layers, on every backend and device."""
    return group_layers([config.window(layer) for layer in range(config.layers)])
