"""What the runner needs from a backend."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.interface import Layers, Step
from legato_engine.layers.low_rank import Adapter, Pair

Forward = Callable[[Step], torch.Tensor]  # a model's layers, called in their order
Progress = Callable[[float], None]  # how much of the weights is loaded, 0 … 1


class Backend(Layers, Protocol):
    """Makes the layers of one model, and prepares steps for them."""

    nbytes: int  # memory of the weights so far

    @property
    def replayed_rows(self) -> tuple[int, ...]:
        """Numbers of decoding rows whose steps are captured during the warm-up, ascending."""

    def adapter(self, pairs: Mapping[str, Pair]) -> Adapter[Any]:
        """An adapter for the linear layers made so far, of A and B by projection. May be called beside a step."""

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> Step:
        """What the layers need to compute this step; `arena` in KVLayout's shape."""

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """What `forward` returns, the one model made of these layers. It may be called once, and what the layers do be
        computed in another way from then on.
        """

    def logits_of(self, tokens: Ints) -> torch.Tensor:
        """Float32 logits [tokens, vocab] after any tokens of the step computed last, by their index in it."""
