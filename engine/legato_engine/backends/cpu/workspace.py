"""Memory for the results of layers."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class CpuBuffer:
    """Memory of one intermediate result, with as many rows as the largest step. Rows that tiles compute beyond the rows
    of a step contain old values.
    """

    __slots__ = ("_array",)

    def __init__(self, width: int, kind: Any) -> None:
        self._array: Array = np.zeros((room(1), width), kind)

    def take(self, rows: int) -> Array:
        """[room, width], with room for `rows`."""
        if len(self._array) < rows:
            self._array = np.zeros((room(rows), self._array.shape[1]), self._array.dtype)
        return self._array


class CpuWorkspace:
    """Buffers by operator and width, shared by all layers of a model. A result is valid until the operator computes
    another one of the same width.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], CpuBuffer] = {}

    def buffer(self, operator: str, width: int, kind: Any = np.float32) -> CpuBuffer:
        key = operator, width
        if key not in self._buffers:
            self._buffers[key] = CpuBuffer(width, kind)
        return self._buffers[key]


def room(rows: int) -> int:
    """`rows` rounded up to the rows of two tiles."""
    return -(-rows // 32) * 32
