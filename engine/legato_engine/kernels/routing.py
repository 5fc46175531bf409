"""The choice of experts for a token, and their activation, as parameters. No tensors, no torch."""

from dataclasses import dataclass
from enum import Enum


class Scoring(Enum):
    """The score of each expert for a token, from the router's logits."""

    SOFTMAX = "softmax over all experts"
    SIGMOID = "sigmoid of each logit"


class Gating(Enum):
    """The activation of an expert, from the outputs g and u of its gate and up projections."""

    SILU = "silu(g) · u"
    CLAMPED = "g · sigmoid(1.702 g) · (u + 1), with g ≤ 7 and |u| ≤ 7"  # gpt-oss


@dataclass(frozen=True, slots=True)
class ExpertRouting:
    """The choice of a token's experts: `active` of `count`, with the highest scores.

    With `groups`, experts are divided evenly, and chosen from the `active_groups` whose two best scores have the
    largest sums. With `normalize`, the weights of a token's experts add up to 1, before they are multiplied by `scale`.
    """

    count: int
    active: int
    scoring: Scoring = Scoring.SOFTMAX
    normalize: bool = True
    scale: float = 1.0
    groups: int = 1
    active_groups: int = 1
