"""The projections that adapters update, numbered through a model."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class LinearShape(NamedTuple):
    """A linear layer of one or more projections of the same input, whose outputs are concatenated."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]


class ModelProjection(NamedTuple):
    """A projection by its number in the model, with its first output in its layer and its number of outputs."""

    number: int
    name: str
    first: int
    outputs: int


def numbered(layers: Sequence[LinearShape]) -> Iterator[ModelProjection]:
    """All projections, in the order of layers."""
    number = 0
    for layer in layers:
        first = 0
        for name, outputs in zip(layer.names, layer.outputs, strict=True):
            yield ModelProjection(number, name, first, outputs)
            number, first = number + 1, first + outputs


def count(layers: Sequence[LinearShape]) -> int:
    """The number of projections so far, which is the number of the next one."""
    return sum(len(layer.names) for layer in layers)
