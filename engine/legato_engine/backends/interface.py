"""The interface between a runner and a backend."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.interface import Layers, Step
from legato_engine.layers.low_rank import LowRankAdapter, Pair

Forward = Callable[[Step], torch.Tensor]  # calls a model's layers in order
Progress = Callable[[float], None]  # is called with the loaded share of the weights, 0 … 1


class Backend(Layers, Protocol):
    """Makes the layers of one model, and prepares steps for them."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights loaded so far."""

    @property
    def further_tokens(self) -> tuple[int, ...]:
        """Further numbers of tokens, multiples of 16, for which the warm-up computes a step, because they use other
        kernels."""

    def adapter(self, pairs: Mapping[str, Pair]) -> LowRankAdapter:
        """An adapter for the linear layers made so far, from A and B by projection. May be called concurrently with
        steps."""

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> Step:
        """Returns the step to call layers with; `arena` has KVLayout's shape."""

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """Returns the result of `forward`, which calls the one model made of these layers.

        Not every step calls it: later steps may replay the operators that layers called in an earlier one.
        """

    def capture(self, forward: Forward, arena: torch.Tensor) -> None:
        """Ends the warm-up, in which all kernels were launched: on a GPU, all later steps are replayed."""

    def capture_missing(self, forward: Forward, arena: torch.Tensor) -> None:
        """Captures the last step for later ones like it, if it was not captured yet. The device computes meanwhile."""

    def logits_of(self, tokens: Ints) -> torch.Tensor:
        """Float32 logits [tokens, vocab] after some tokens of the last step, given by their indices in it."""
