"""What an adapter adds to linear layers: products of two narrow matrices, laid out as the layers are fused.

LoRA (Hu et al., 2021): y = W x + scale · B (A x). The scale is part of B here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:  # workers that compute nothing take inputs of steps as well
    import torch


class Pair(NamedTuple):
    """For one projection: A [rank, in] and B [out, rank]."""

    a: "torch.Tensor"
    b: "torch.Tensor"


class Up(NamedTuple):
    """From `ranks` of the inner values to outputs `first` and on: B [out, rank]."""

    ranks: slice
    first: int
    b: "torch.Tensor"


@dataclass(frozen=True, slots=True)
class LowRank:
    """For one linear layer of several projections: their A [ranks, in], one after another, and the B of each."""

    down: "torch.Tensor"
    ups: tuple[Up, ...]

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + sum(up.b.nbytes for up in self.ups)


class Update(Protocol):
    """What an adapter adds to one linear layer, as a backend holds it."""

    @property
    def nbytes(self) -> int: ...


U = TypeVar("U", bound=Update, covariant=True)


@dataclass(frozen=True)
class Adapter(Generic[U]):
    """One adapter, as a backend holds it: what it adds, by the first projection of the linear layer."""

    updates: Mapping[str, U]

    @property
    def nbytes(self) -> int:
        return sum(update.nbytes for update in self.updates.values())
