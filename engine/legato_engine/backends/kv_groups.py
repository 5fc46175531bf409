"""The groups of layers that a model's KV is kept in."""

from legato_engine.kvcache.groups import LayerGroups, group_layers
from legato_engine.models.config import ModelConfig


def groups_of(config: ModelConfig) -> LayerGroups:
    """The groups of a model's layers, on every backend and device. A window that is never exceeded counts as none."""
    windows = [config.window(layer) for layer in range(config.layers)]
    return group_layers([None if each is None or each >= config.max_length else each for each in windows])
