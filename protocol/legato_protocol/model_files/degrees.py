"""Degrees of tensor parallelism: the numbers of ranks that the layers of a model can be divided among."""

from collections.abc import Mapping
from typing import Final

DEGREES: Final = (1, 2, 4, 8)


def degrees_that_fit(heads: int, kv_heads: int, inner_sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the degrees that divide a model: its attention heads and the sizes between projections of MLPs.

    With more ranks than KV heads, several ranks hold the same one, so either number must divide the other.
    """
    return tuple(degree for degree in DEGREES if not _undivided(degree, heads, kv_heads, inner_sizes))


def unfit_degree(degree: int, heads: int, kv_heads: int, inner_sizes: Mapping[str, int]) -> str:
    """Returns the reason why a degree does not divide a model, with the degrees that do; empty if it divides it.

    The keys of `inner_sizes` name them in the text.
    """
    if not (undivided := _undivided(degree, heads, kv_heads, inner_sizes)):
        return ""
    fit = ", ".join(map(str, degrees_that_fit(heads, kv_heads, inner_sizes)))
    return f"{', '.join(undivided)} cannot be divided among {degree} ranks; degrees that fit: {fit}"


def _undivided(degree: int, heads: int, kv_heads: int, inner_sizes: Mapping[str, int]) -> list[str]:
    undivided = [f"{heads} attention heads"] if heads % degree else []
    if kv_heads % degree and degree % kv_heads:
        undivided.append(f"{kv_heads} KV heads")
    return undivided + [f"{name} {size}" for name, size in inner_sizes.items() if size % degree]
