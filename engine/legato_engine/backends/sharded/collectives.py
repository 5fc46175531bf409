"""Sums over the ranks of a worker, as operators of a backend's steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from legato_engine.backends.sharded.shared_memory import SharedMemory
from legato_engine.layers.interface import Hidden, Step


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

    def sum(self, step: Step, x: Hidden) -> Hidden:
        """Replaces x with its sum over ranks."""

    def sum_own(self, step: Step, x: Hidden, own: "OwnRows") -> Hidden:
        """As `sum`, with zeros for rows that belong to other ranks."""

    def norm(self, step: Step, x: Hidden, norms: Sequence[WholeNorm], eps: float) -> None: ...
    def gather(self, logits: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Logits float32 [tokens, vocab], from the columns of each rank; for other ranks than the first, their own."""


@dataclass(slots=True)
class OwnRows:
    """The tokens of the current step whose embeddings this rank has; the others, bool [tokens]."""

    others: Any = None


class OnHost:
    """Operators on torch's tensors in the host's memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory

    def sum(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        wide = x.float().contiguous()
        self.memory.add(wide.numpy())
        return x if wide is x else x.copy_(wide)

    def sum_own(self, step: Step, x: torch.Tensor, own: OwnRows) -> torch.Tensor:
        x[torch.from_numpy(own.others)] = 0
        return self.sum(step, x)

    def norm(self, step: Step, x: torch.Tensor, norms: Sequence[WholeNorm], eps: float) -> None:
        squares = torch.stack([each.squares(x) for each in norms])
        self.memory.add(squares.numpy())
        for each, sums in zip(norms, squares, strict=True):
            each.norm(x, sums, eps)

    def gather(self, logits: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        gathered = self.memory.gather(logits.numpy(), widths)
        return logits if gathered is None else torch.from_numpy(gathered)


class OfCpuSteps:
    """The operators of `OnHost` for steps of the backend `cpu`, which may be recorded."""

    def __init__(self, memory: SharedMemory) -> None:
        self._host = OnHost(memory)

    def sum(self, step: Any, x: Any) -> Any:
        step.call(lambda step: self._host.memory.add(x[: step.rows]))
        return x

    def sum_own(self, step: Any, x: Any, own: OwnRows) -> Any:
        step.call(lambda step: self._host.sum_own(step, torch.from_numpy(x[: step.rows]), own))
        return x

    def norm(self, step: Any, x: Any, norms: Sequence[WholeNorm], eps: float) -> None:
        step.call(lambda step: self._host.norm(step, torch.from_numpy(x[: step.rows]), norms, eps))

    def gather(self, logits: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        return self._host.gather(logits, widths)
