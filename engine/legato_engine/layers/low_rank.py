"""Low-rank updates of linear layers by an adapter, laid out like the fused layers.

LoRA (Hu et al., 2021): y = W x + scale · B (A x). The scale is part of B here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:  # paced workers import this without torch
    import torch


class Pair(NamedTuple):
    """The matrices of one projection: A [rank, in] and B [out, rank]."""

    a: "torch.Tensor"
    b: "torch.Tensor"


class Up(NamedTuple):
    """Maps `ranks` of the inner values to the outputs from `first` on: B [out, rank]."""

    ranks: slice
    first: int
    b: "torch.Tensor"


@dataclass(frozen=True, slots=True)
class LowRank:
    """The update of one linear layer with several projections: their concatenated A [ranks, in], and the B of each."""

    down: "torch.Tensor"
    ups: tuple[Up, ...]

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + sum(up.b.nbytes for up in self.ups)


class Update(Protocol):
    """An adapter's update of one linear layer, in a backend's format."""

    @property
    def nbytes(self) -> int: ...


U = TypeVar("U", bound=Update, covariant=True)


@dataclass(frozen=True)
class LowRankAdapter(Generic[U]):
    """One adapter in a backend's format: its updates by the linear layer's first projection."""

    updates: Mapping[str, U]

    @property
    def nbytes(self) -> int:
        return sum(update.nbytes for update in self.updates.values())
