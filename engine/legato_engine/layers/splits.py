"""How the ranks of a worker divide a linear layer, as in Megatron-LM (Shoeybi et al., 2019)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ColumnParallel:
    """Each rank computes a part of the outputs, from all inputs.

    `parts` are sizes of consecutive outputs, such as gates and ups, that are divided one by one. Of each, `unit`
    outputs stay together: a head's."""

    parts: tuple[int, ...]
    unit: int = 1


@dataclass(frozen=True, slots=True)
class RowParallel:
    """Each rank computes all outputs from a part of the inputs; the results of all ranks are added."""


Split = ColumnParallel | RowParallel
