"""Scales of KV in e4m3 from a checkpoint, as compressed-tensors, AutoFP8 and ModelOpt write them."""

import torch

from legato_engine.errors import CorruptModel
from legato_engine.weights.checkpoint import Checkpoint

# Names in a layer's attention; the first one in the checkpoint is read. `kv_scale` is for keys and values.
_NAMES = ("k_scale", "k_proj.k_scale", "kv_scale"), ("v_scale", "v_proj.v_scale", "kv_scale")


def read(checkpoint: Checkpoint) -> torch.Tensor:
    """The factors of KV codes: float32 [layers, 2, kv_heads], keys before values; 1 without scales in the file.

    Nothing is calibrated: if scales depended on a worker's first prompts, workers would have different KV for the same
    tokens, and could not exchange it. Raises CorruptModel.
    """
    config, names = checkpoint.config, checkpoint.names()
    scales, missing = torch.ones(config.layers, 2, config.kv_heads), list[str]()
    for layer in range(config.layers):
        for which, given in enumerate(_NAMES):
            allowed = [f"model.layers.{layer}.self_attn.{name}" for name in given]
            if (name := next((name for name in allowed if name in names), None)) is None:
                missing.append(allowed[0])
            else:
                scales[layer, which] = _checked(checkpoint, name)
    if missing and len(missing) < 2 * config.layers:
        needed = "scales of KV are needed for all layers or none"
        raise CorruptModel(f"{checkpoint.path}: {missing[0]} is missing; {needed}")
    return scales


def _checked(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """A scale [1], or scales [kv_heads]."""
    given, heads = checkpoint.tensor(name), checkpoint.config.kv_heads
    scale = given.float().flatten()
    if len(scale) not in (1, heads):
        shape, needed = tuple(given.shape), f"one scale, or one for each of {heads} KV heads, is needed"
        raise CorruptModel(f"{checkpoint.path}: {name} has shape {shape}; {needed}")
    if not (scale.isfinite() & (scale > 0)).all():
        raise CorruptModel(f"{checkpoint.path}: {name} is {scale.tolist()}; finite numbers above 0 are needed")
    return scale
