"""The interface between a runner and a backend."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.interface import Layers, Step
from legato_engine.layers.low_rank import LowRankAdapter, Pair

Forward = Callable[[Step], torch.Tensor]  # calls a model's layers in their order
Progress = Callable[[float], None]  # takes the share of the weights that is loaded, 0 … 1


class Backend(Layers, Protocol):
    """Makes the layers of one model, and prepares steps for them."""

    nbytes: int  # memory of the weights so far

    @property
    def replayed_rows(self) -> tuple[int, ...]:
        """Numbers of decoding rows whose steps are captured during the warm-up, ascending."""

    def adapter(self, pairs: Mapping[str, Pair]) -> LowRankAdapter[Any]:
        """An adapter for the linear layers made so far, from A and B by projection. May be called concurrently with
        steps."""

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> Step:
        """The step as its layers take it; `arena` in KVLayout's shape."""

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """The result of `forward`, the one model made of these layers. It may be called only once: later steps may
        replay the operators that its layers called.
        """

    def logits_of(self, tokens: Ints) -> torch.Tensor:
        """Float32 logits [tokens, vocab] after any tokens of the last step, by their index in it."""
