"""Memory that layers compute into."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Buffer:
    """Memory of one intermediate result, of as many rows as were ever asked for: rows that tiles compute beyond a
    step's own hold what was there before.
    """

    __slots__ = ("_array",)

    def __init__(self, width: int, kind: Any) -> None:
        self._array: Array = np.zeros((room(1), width), kind)

    def take(self, rows: int) -> Array:
        """[room, width], with room for `rows`."""
        if len(self._array) < rows:
            self._array = np.zeros((room(rows), self._array.shape[1]), self._array.dtype)
        return self._array


class Workspace:
    """Buffers by operator and width: all layers of a model use the same. A result is valid until that operator computes
    another one of that width.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], Buffer] = {}

    def buffer(self, operator: str, width: int, kind: Any = np.float32) -> Buffer:
        key = operator, width
        if key not in self._buffers:
            self._buffers[key] = Buffer(width, kind)
        return self._buffers[key]


def room(rows: int) -> int:
    """`rows` rounded up to what tiles compute."""
    return -(-rows // 32) * 32
