"""One step on a processor: its inputs and work for attention; and the buffers that layers compute into."""

from typing import Any

import numpy as np

from legato_engine.layers.inputs import Ints, StepInputs

Array = np.ndarray[Any, Any]
LANES = 16  # of a tile of attention with AMX
WIDE = 32  # of a tile in float32
PART = 256  # positions that one thread takes of a row with few tiles
FEW = 4  # tiles


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

    def __init__(self, inputs: StepInputs, work: Ints, arena: Array) -> None:
        """`work` is what attention has to do, as its kernel takes it."""
        self.inputs = inputs
        self.rows = len(inputs.tokens)
        self.work = work
        self.arena = arena


def room(rows: int) -> int:
    """`rows` rounded up to what tiles compute."""
    return -(-rows // 32) * 32


def tiles(inputs: StepInputs, shared: int) -> Ints:
    """Work for attention with AMX, int64 [tiles, 5]: row, its first token, its start position, first lane, lanes.

    A lane is one query of one of the `shared` heads on a KV head.
    """
    work = list[tuple[int, int, int, int, int]]()
    starts, lengths = inputs.starts.tolist(), inputs.lengths.tolist()
    for row, length in enumerate(lengths):
        first, count = starts[row], starts[row + 1] - starts[row]
        lanes, start = count * shared, length - count
        work += [(row, first, start, lane, min(LANES, lanes - lane)) for lane in range(0, lanes, LANES)]
    return np.array(work, np.int64)


def parts(inputs: StepInputs, shared: int) -> Ints:
    """Work for attention in float32, int64 [tasks, 10], as its kernel says; longest first.

    A row with few tiles is cut along its positions, so that several threads take one. Where, depends on nothing but the
    row: its result is the same beside other rows and with any number of threads.
    """
    work, slots = list[tuple[int, ...]](), 0
    starts, lengths = inputs.starts.tolist(), inputs.lengths.tolist()
    for row, length in enumerate(lengths):
        token, count = starts[row], starts[row + 1] - starts[row]
        width, start = shared if count == 1 else WIDE, length - count
        for lane in range(0, count * shared, width):
            lanes = min(width, count * shared - lane)
            end = start + (lane + lanes - 1) // shared + 1
            begins = range(0, end, PART if count * shared <= FEW * width else end)
            pieces = len(begins) if len(begins) > 1 else 0
            for part, begin in enumerate(begins):
                stop = min(begin + begins.step, end)
                work.append((row, token, start, lane, lanes, begin, stop, part, pieces, slots))
            slots += lanes * pieces
    work.sort(key=lambda task: (task[6] - task[5]) * (1 if task[4] == shared else 8), reverse=True)
    return np.array(work, np.int64)
