"""Reads an adapter's `adapter_config.json`, as PEFT writes it. Refuses settings that the engine does not compute."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legato_engine.errors import CorruptModel, UnsupportedModel
from legato_engine.weights.config_file import read_json

CONFIG = "adapter_config.json"

# Settings that change the computation, with the values, in addition to a missing one, that leave it as it is here.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "alora_invocation_tokens": (),
    "alpha_pattern": ({},),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "layer_replication": (),
    "lora_bias": (False,),
    "modules_to_save": ([],),
    "rank_pattern": ({},),
    "target_parameters": ([],),
    "trainable_token_indices": ([], {}),
    "use_dora": (False,),
    "use_qalora": (False,),
}
_CHANGE_THE_BASE = ("corda", "loftq", "olora", "pissa")  # initializations that change the base model's weights


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """`scale` multiplies B · A. `targets` are the last parts of the names of projections.

    `targets` is None if the file does not list them, or restricts them to some layers.
    """

    rank: int
    scale: float
    targets: tuple[str, ...] | None


def read(folder: Path, max_rank: int, own_max_rank: int | None = None) -> AdapterConfig:
    """Reads the config in a folder; the rank must not exceed either bound.

    Raises ModelNotFound, CorruptModel, UnsupportedModel.
    """
    path, raw = folder / CONFIG, read_json(folder / CONFIG)
    if raw.get("peft_type") != "LORA":
        raise UnsupportedModel(f"{path}: peft_type {raw.get('peft_type')!r} is not supported; supported: 'LORA'")
    for name, neutral in _NEUTRAL.items():
        value = raw.get(name)
        if value is not None and value not in neutral:
            raise UnsupportedModel(f"{path}: {name} {value!r} is not supported")
    start = raw.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGE_THE_BASE):
        raise UnsupportedModel(f"{path}: init_lora_weights {start!r} is not supported: it changes the base's weights")
    rank, alpha = raw.get("r"), raw.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise CorruptModel(f"{path}: not a valid r: {rank!r} (a whole number from 1)")
    if own_max_rank is not None and rank > own_max_rank:
        raise UnsupportedModel(f"{path}: r is {rank}; at most {own_max_rank} is allowed for it (maxRank)")
    if rank > max_rank:
        raise UnsupportedModel(f"{path}: r is {rank}; at most {max_rank} is allowed here (model.maxAdapterRank)")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise CorruptModel(f"{path}: not a valid lora_alpha: {alpha!r} (a number)")
    scale = alpha / math.sqrt(rank) if raw.get("use_rslora") else alpha / rank
    return AdapterConfig(rank, scale, _targets(raw))


def _targets(raw: Mapping[str, Any]) -> tuple[str, ...] | None:
    said = raw.get("target_modules")
    partly = any(raw.get(name) for name in ("layers_to_transform", "layers_pattern", "exclude_modules"))
    listed = isinstance(said, list) and said and all(isinstance(name, str) and name for name in said)
    return tuple(said) if listed and not partly else None  # type: ignore[arg-type]
