"""Tables of rotary angles: cosines and sines of every position a model can have."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import torch

from legato_engine.layers.rotation import Rotation

T = TypeVar("T")
Scaling = Mapping[str, Any]  # see `ModelConfig.rope_scaling`


def frequencies(dim: int, theta: float, scaling: Scaling | None) -> torch.Tensor:
    """Angle per position of each pair of `dim` rotated numbers, float32 [dim/2], with the model's scaling."""
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    plain = 1.0 / (theta**exponents)
    if scaling is None:
        return plain
    if scaling["rope_type"] == "yarn":
        return _yarn(plain, scaling, theta)
    kinds = {"linear": _linear, "llama3": _llama3, "factors": _factors}
    return kinds[scaling["rope_type"]](plain, scaling)


def tables(rotation: Rotation | None, max_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32 [max_length, pairs], multiplied by `Rotation.multiplier` and the attention factor."""
    if rotation is None:
        return torch.empty(max_length, 0), torch.empty(max_length, 0)
    scaling = rotation.scaling
    angles = torch.outer(torch.arange(max_length).float(), frequencies(rotation.dim, rotation.theta, scaling))
    multiplier = rotation.multiplier * float((scaling or {}).get("attention_factor", 1.0))
    return angles.cos() * multiplier, angles.sin() * multiplier


class RotaryTables(Generic[T]):
    """The tables of a model's rotations in a backend's form, each made once."""

    def __init__(self, max_length: int, form: Callable[[torch.Tensor], T]) -> None:
        self._max_length = max_length
        self._form = form
        self._made: dict[Rotation | None, tuple[T, T]] = {}

    def __getitem__(self, rotation: Rotation | None) -> tuple[T, T]:
        """Returns cos and sin, see `tables`."""
        if rotation not in self._made:
            cos, sin = tables(rotation, self._max_length)
            self._made[rotation] = self._form(cos), self._form(sin)
        return self._made[rotation]


def _linear(plain: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    return plain / float(scaling["factor"])


def _factors(plain: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    return plain / torch.tensor(scaling["factors"], dtype=torch.float32)


def _llama3(plain: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """Llama 3.1: divides the frequency of long waves by `factor`, keeps short ones, and blends in between."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    wavelength = 2 * math.pi / plain
    share = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - share) * plain / factor + share * plain


def _yarn(plain: torch.Tensor, scaling: Scaling, theta: float) -> torch.Tensor:
    """YaRN (Peng et al., 2023): keeps pairs with many rotations in the original length, and slows others."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    pairs = len(plain)

    def pair_with(rotations: float) -> float:
        """The pair that makes this number of rotations in the original length."""
        return pairs * math.log(original / (rotations * 2 * math.pi)) / math.log(theta)

    low, high = pair_with(float(scaling["beta_fast"])), pair_with(float(scaling["beta_slow"]))
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    slowed = ((torch.arange(pairs).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / factor * slowed + plain * (1 - slowed)
