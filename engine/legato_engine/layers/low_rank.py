"""Low-rank updates of linear layers by an adapter.

LoRA (Hu et al., 2021): y = W x + scale · B (A x). The scale is part of B here.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # paced workers import this without torch
    import torch


class Pair(NamedTuple):
    """The matrices of one projection: A [rank, in] and B [out, rank]."""

    a: "torch.Tensor"
    b: "torch.Tensor"


class LowRankAdapter:
    """An adapter in the format of the backend that made it. `nbytes` are the bytes of its matrices there."""

    nbytes: int
