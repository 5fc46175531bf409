"""One step on a processor: its inputs and work for attention; and the buffers that layers compute into."""

from typing import Any

import numpy as np

from legato_engine.layers.inputs import Ints, StepInputs

Array = np.ndarray[Any, Any]
LANES = 16  # of a tile of attention


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


class CpuStep:
    """What layers read. `arena` as the kernels take it, in KVLayout's shape."""

    __slots__ = ("arena", "inputs", "rows", "work")

    def __init__(self, inputs: StepInputs, shared: int, arena: Array) -> None:
        """`shared` heads use one KV head."""
        self.inputs = inputs
        self.rows = len(inputs.tokens)
        self.work = tiles(inputs, shared)
        self.arena = arena


def room(rows: int) -> int:
    """`rows` rounded up to what tiles compute."""
    return -(-rows // 32) * 32


def tiles(inputs: StepInputs, shared: int) -> Ints:
    """Work for attention, int64 [tiles, 5]: row, its first token, its start position, first lane, lanes.

    A lane is one query of one of the `shared` heads on a KV head.
    """
    work = list[tuple[int, int, int, int, int]]()
    starts, lengths = inputs.starts.tolist(), inputs.lengths.tolist()
    for row, length in enumerate(lengths):
        first, count = starts[row], starts[row + 1] - starts[row]
        lanes, start = count * shared, length - count
        work += [(row, first, start, lane, min(LANES, lanes - lane)) for lane in range(0, lanes, LANES)]
    return np.array(work, np.int64)
