"""A part of a tensor: some of its outputs, the first axis, and some of its inputs, the second one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

Span = tuple[int, int]  # the first number, and the one after the last


@dataclass(frozen=True, slots=True)
class Cut:
    """Spans of outputs, and a span of inputs; None: all."""

    outputs: tuple[Span, ...] | None = None
    inputs: Span | None = None

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        shape = list(whole)
        if self.outputs is not None:
            shape[0] = sum(last - first for first, last in self.outputs)
        if self.inputs is not None and len(shape) > 1:
            shape[1] = self.inputs[1] - self.inputs[0]
        return tuple(shape)

    def of(self, tensor: torch.Tensor, inputs_per_column: int = 1) -> torch.Tensor:
        """The part of a tensor, whose columns stand for several inputs each; a view unless there are several spans."""
        if self.outputs is not None:
            parts = [tensor[first:last] for first, last in self.outputs]
            tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.inputs is not None and tensor.dim() > 1:
            first, last = self.inputs
            tensor = tensor[:, first // inputs_per_column : last // inputs_per_column]
        return tensor

    def by_group(self, values: torch.Tensor, group: int) -> torch.Tensor:
        """The part of numbers of groups of inputs: [out, groups]. Raises ValueError if the cut is within a group."""
        rows, groups = replace(self, inputs=None).of(values), values.shape[1]
        if self.inputs is None or groups == 1:
            return rows
        first, last = self.inputs
        if first % group or (last % group and -(-last // group) < groups):
            raise ValueError(f"inputs {first} to {last} are not whole groups of {group}")
        return rows[:, first // group : -(-last // group)]

    def stored(self, shape: tuple[int, ...], outputs: int = 1, inputs: int | None = 1) -> Iterator["StoredPart"]:
        """Yields what has to be read of a matrix of this shape, if a file holds `outputs` and `inputs` together; None:
        all inputs."""
        columns = self.inputs or (0, shape[1])
        across = (0, shape[1]) if inputs is None else _enclosing(columns, inputs)
        for rows in self.outputs or ((0, shape[0]),):
            down = _enclosing(rows, outputs)
            yield StoredPart(down, across, _within(rows, down), _within(columns, across))


class StoredPart(NamedTuple):
    """Outputs and inputs that are read together, and the ones of them that are needed."""

    outputs: Span
    inputs: Span
    rows: slice
    columns: slice


WHOLE = Cut()


def _enclosing(span: Span, unit: int) -> Span:
    return span[0] // unit * unit, -(-span[1] // unit) * unit


def _within(span: Span, enclosing: Span) -> slice:
    return slice(span[0] - enclosing[0], span[1] - enclosing[0])
