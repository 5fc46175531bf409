"""Sums over the ranks of a worker, as operators of a backend's steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from legato_engine.backends.sharded.rank import Rank, Span
from legato_engine.backends.sharded.shared_memory import SharedMemory
from legato_engine.layers.inputs import StepInputs
from legato_engine.layers.interface import Embedding, Hidden, Step

Add = Callable[[torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class WholeNorm:
    """The RMSNorm of some columns of an array, over all ranks: `total` columns, of which `copies` ranks have each."""

    columns: slice
    weight: torch.Tensor  # of this rank's columns
    total: int
    copies: int

    def squares(self, x: torch.Tensor) -> torch.Tensor:
        """The sums of squares of this rank's columns, float32 [tokens]."""
        return x[:, self.columns].float().square().sum(1) / self.copies

    def norm(self, x: torch.Tensor, squares: torch.Tensor, eps: float) -> None:
        """Norms this rank's columns in place, by the sums of squares of all columns."""
        part = x[:, self.columns]
        normed = part.float() * (squares / self.total + eps).rsqrt()[:, None]
        part.copy_(normed.to(part.dtype) * self.weight.to(part.device, part.dtype))


class Collectives(Protocol):
    """Operators that all ranks compute together, in the same order. Arrays are a backend's own."""

    def own_tokens(self, inputs: StepInputs, own: Span) -> StepInputs:
        """The inputs for `embed`; `own` are the rows of the table of embeddings that this rank has."""

    def embed(self, step: Step, rows: Embedding, own: Span) -> Hidden:
        """The embeddings of all tokens, of which other ranks have some."""

    def sum(self, step: Step, x: Hidden) -> Hidden:
        """Replaces x with its sum over ranks."""

    def norm(self, step: Step, x: Hidden, norms: Sequence[WholeNorm], eps: float) -> None: ...
    def gather(self, logits: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Logits float32 [tokens, vocab], from the columns of each rank. Other ranks than the first get any tensor."""

    def share(self, numbers: torch.Tensor) -> torch.Tensor:
        """The first rank's whole numbers below 2^24; others pass zeros."""


class OnHost:
    """Operators on torch's tensors in the host's memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._others: Any = None  # bool [tokens]: the step's tokens that other ranks embed

    def own_tokens(self, inputs: StepInputs, own: Span) -> StepInputs:
        first, last = own
        self._others = (inputs.tokens < first) | (inputs.tokens >= last)
        return replace(inputs, tokens=np.where(self._others, 0, inputs.tokens - first))

    def embed(self, step: Step, rows: Embedding, own: Span) -> torch.Tensor:
        x: torch.Tensor = rows(step)
        self.add_others(x)
        return x

    def add_others(self, x: torch.Tensor) -> None:
        """Adds the embeddings that other ranks have."""
        x[torch.from_numpy(self._others)] = 0
        self.add(x)

    def sum(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        self.add(x)
        return x

    def add(self, x: torch.Tensor) -> None:
        wide = x.float().contiguous()
        self._memory.add(wide.numpy())
        if wide is not x:
            x.copy_(wide)

    def norm(self, step: Step, x: torch.Tensor, norms: Sequence[WholeNorm], eps: float) -> None:
        norm_whole(x, norms, eps, self.add)

    def gather(self, logits: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        gathered = self._memory.gather(logits.numpy(), widths)
        return logits if gathered is None else torch.from_numpy(gathered)

    def share(self, numbers: torch.Tensor) -> torch.Tensor:
        self.add(numbers)
        return numbers


class OfCpuSteps(OnHost):
    """Operators of steps of the backend `cpu`, which may be recorded. Arrays have more rows than a step."""

    def embed(self, step: Any, rows: Embedding, own: Span) -> Any:
        x = rows(step)
        step.call(lambda step: self.add_others(torch.from_numpy(x[: step.rows])))
        return x

    def sum(self, step: Any, x: Any) -> Any:
        step.call(lambda step: self._memory.add(x[: step.rows]))
        return x

    def norm(self, step: Any, x: Any, norms: Sequence[WholeNorm], eps: float) -> None:
        step.call(lambda step: norm_whole(torch.from_numpy(x[: step.rows]), norms, eps, self.add))


class OfGpuSteps:
    """Operators of steps on GPUs, which may be captured. `add` replaces a contiguous tensor of floats with its sum."""

    def __init__(self, rank: Rank, add: Add) -> None:
        self._rank = rank
        self._add = add

    def own_tokens(self, inputs: StepInputs, own: Span) -> StepInputs:
        return inputs  # only the device has all tokens

    def embed(self, step: Any, rows: Embedding, own: Span) -> torch.Tensor:
        first, last = own
        local = step.tokens - first
        others = (local < 0) | (local >= last - first)
        x: torch.Tensor = rows(replace(step, tokens=local.clamp(0, max(0, last - first - 1))))
        self._add(x.masked_fill_(others[:, None], 0))
        return x

    def sum(self, step: Any, x: torch.Tensor) -> torch.Tensor:
        self._add(x)
        return x

    def norm(self, step: Any, x: torch.Tensor, norms: Sequence[WholeNorm], eps: float) -> None:
        norm_whole(x, norms, eps, self._add)

    def gather(self, logits: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        gathered = logits.new_zeros(len(logits), sum(widths))
        first = sum(widths[: self._rank.index])
        gathered[:, first : first + logits.shape[1]] = logits
        self._add(gathered)
        return gathered

    def share(self, numbers: torch.Tensor) -> torch.Tensor:
        wide = numbers.float()
        self._add(wide)
        return wide.to(numbers.dtype)


def norm_whole(x: torch.Tensor, norms: Sequence[WholeNorm], eps: float, add: Add) -> None:
    """Norms the columns of `norms` in place."""
    squares = torch.stack([each.squares(x) for each in norms])
    add(squares)
    for each, sums in zip(norms, squares, strict=True):
        each.norm(x, sums, eps)
