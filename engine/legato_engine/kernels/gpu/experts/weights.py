"""The layout of experts' weights: one projection of all experts, with gates and ups interleaved.

Gate i of an expert is its output 2 i, and up i the next one, so that a program has both in one tile, and a thread in
neighbouring registers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from legato_engine.kernels.gpu.linear.codes import CodeMatrix


@dataclass(frozen=True, slots=True)
class DenseExperts:
    """A projection of all experts in floating point."""

    weights: torch.Tensor  # [experts, outputs, inputs]

    @property
    def outputs(self) -> int:
        return self.weights.shape[1]

    @property
    def inputs(self) -> int:
        return self.weights.shape[2]

    @property
    def bits(self) -> int:
        return 8 * self.weights.itemsize

    @property
    def float8(self) -> bool:
        return False

    @property
    def group(self) -> int:
        """All inputs."""
        return self.inputs

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes


@dataclass(frozen=True, slots=True)
class CodeExperts:
    """A projection of all experts in codes: as a `CodeMatrix` of one expert, but with codes [experts, …], and scales,
    zero points and minima [experts · groups, outputs], and orders [experts, inputs].

    With `float8`, blocks of many rows are multiplied with activations in FP8."""

    matrix: CodeMatrix
    float8: bool = False

    @property
    def outputs(self) -> int:
        return self.matrix.outputs

    @property
    def inputs(self) -> int:
        return self.matrix.inputs

    @property
    def bits(self) -> int:
        return self.matrix.bits

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.matrix.group

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes


ExpertWeights = DenseExperts | CodeExperts


def interleaved(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Interleaves rows: `parts` [outputs, …] → [parts · outputs, …]."""
    return torch.stack(tuple(parts), 1).flatten(0, 1)
