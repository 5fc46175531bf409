"""The rotary embedding of a layer. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotates the first `dim` numbers of each head's query and key; `scaling` as in `ModelConfig.rope_scaling`.

    Both are multiplied by `multiplier`, and scores thus by its square: a model's own scale of scores needs no kernel.
    """

    dim: int
    theta: float
    scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    multiplier: float = 1.0
