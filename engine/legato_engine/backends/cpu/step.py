"""One step on a processor: its inputs, work for attention, and buffers for what the layers compute."""

from typing import Any

import numpy as np

from legato_engine.layers.inputs import Ints, StepInputs

Array = np.ndarray[Any, Any]
LANES = 16  # of a tile of attention


class Workspace:
    """Memory of intermediate results, a buffer for each operator and width: all layers and steps use the same.

    A result is valid until that operator computes another one of that width.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], Array] = {}

    def take(self, operator: str, rows: int, width: int, kind: Any = np.float32) -> Array:
        """[room, width]: `rows` rounded up, since tiles compute 16 or 32 rows at a time."""
        found = self._buffers.get((operator, width))
        if found is None or len(found) < rows:
            found = self._buffers[operator, width] = np.zeros((room(rows), width), kind)
        return found


class CpuStep:
    """What layers read. `arena` as the kernels take it, in KVLayout's shape."""

    __slots__ = ("arena", "inputs", "rows", "work", "workspace")

    def __init__(self, inputs: StepInputs, shared: int, arena: Array, workspace: Workspace) -> None:
        """`shared` heads use one KV head."""
        self.inputs = inputs
        self.rows = len(inputs.tokens)
        self.work = tiles(inputs, shared)
        self.arena = arena
        self.workspace = workspace


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
