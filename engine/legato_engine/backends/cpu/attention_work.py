"""Work lists of a step for attention's kernels."""

import numpy as np

from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu.attention.work import PART, TILE
from legato_engine.layers.inputs import StepInputs

LANES = 32  # of a tile
PART_POSITIONS = 256  # positions of a part, if a row is divided
FEW_TILES = 4  # a row with more is not divided
SHORT = 8  # tokens: a row with at most these is computed token by token, since it would use few lanes of a tile


def tiles(inputs: StepInputs, shared: int) -> Array:
    """Work for attention with AMX, TILE [tiles]; tiles that see the most positions come first.

    A lane is one query of one of the `shared` heads that use a KV head.
    """
    work = list[tuple[int, int, int, int, int]]()
    starts, lengths = inputs.starts.tolist(), inputs.lengths.tolist()
    for row, length in enumerate(lengths):
        first, count = starts[row], starts[row + 1] - starts[row]
        lanes, start = count * shared, length - count
        work += [(row, first, start, lane, min(LANES, lanes - lane)) for lane in range(0, lanes, LANES)]
    tiles = np.array(work, np.int64).view(TILE).reshape(-1)
    seen = tiles["start"] + (tiles["lane"] + tiles["lanes"] - 1) // shared
    return tiles[np.argsort(-seen, kind="stable")]


def parts(inputs: StepInputs, shared: int) -> Array:
    """Work for attention in float32, PART [tasks], longest first.

    A row with few tiles is divided along its positions, so that several threads share a tile. The division depends only
    on the row: its result is the same with any other rows and any number of threads.
    """
    work, slots = list[tuple[int, ...]](), 0
    starts, lengths = inputs.starts.tolist(), inputs.lengths.tolist()
    for row, length in enumerate(lengths):
        first, count = starts[row], starts[row + 1] - starts[row]
        divided = count <= SHORT or count * shared <= FEW_TILES * LANES
        for token, start, lane, lanes, end in _tasks(first, length - count, count, shared):
            begins = range(0, end, PART_POSITIONS if divided else end)
            pieces = len(begins) if len(begins) > 1 else 0
            for part, begin in enumerate(begins):
                stop = min(begin + begins.step, end)
                work.append((row, token, start, lane, lanes, begin, stop, part, pieces, slots))
            slots += lanes * pieces
    parts = np.array(work, np.int64).view(PART).reshape(-1)
    costs = (parts["end"] - parts["begin"]) * np.where(parts["lanes"] == shared, 1, 8)
    return parts[np.argsort(-costs, kind="stable")]


def _tasks(first: int, start: int, count: int, shared: int) -> list[tuple[int, int, int, int, int]]:
    """Token, position, first lane, lanes and end of each tile of a row, or of each token of a short row."""
    if count <= SHORT:
        return [(first + place, start + place, 0, shared, start + place + 1) for place in range(count)]
    lanes = count * shared
    return [
        (first, start, lane, min(LANES, lanes - lane), start + (min(lane + LANES, lanes) - 1) // shared + 1)
        for lane in range(0, lanes, LANES)
    ]
