"""Tables of rotary angles: cosines and sines of every position a model can have."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from legato_engine.models.config import ModelConfig


def frequencies(config: ModelConfig) -> torch.Tensor:
    """Angle per position of each pair, float32 [head_dim/2], with the model's scaling."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    kinds = {"linear": _linear, "llama3": _llama3, "factors": _factors}
    return kinds[scaling["rope_type"]](plain, scaling)


def tables(config: ModelConfig, max_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [max_length, head_dim/2]."""
    angles = torch.outer(torch.arange(max_length).float(), frequencies(config))
    return angles.cos(), angles.sin()


def _linear(plain: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    return plain / float(scaling["factor"])


def _factors(plain: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    return plain / torch.tensor(scaling["factors"], dtype=torch.float32)


def _llama3(plain: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    """Llama 3.1: long waves are slowed by `factor`, short ones kept, those between blended."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / plain
    share = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - share) * plain / factor + share * plain
