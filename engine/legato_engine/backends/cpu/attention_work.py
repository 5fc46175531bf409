"""What attention has to do in a step, as its kernels take it."""

import numpy as np

from legato_engine.layers.inputs import Ints, StepInputs

LANES = 32  # of a tile
PART = 256  # positions that one thread takes of a row with few tiles
FEW = 4  # tiles


def tiles(inputs: StepInputs, shared: int) -> Ints:
    """Work for attention with AMX, int64 [tiles, 5]: row, its first token, its start position, first lane, lanes; those
    that see the most positions first.

    A lane is one query of one of the `shared` heads on a KV head.
    """
    work = list[tuple[int, int, int, int, int]]()
    starts, lengths = inputs.starts.tolist(), inputs.lengths.tolist()
    for row, length in enumerate(lengths):
        first, count = starts[row], starts[row + 1] - starts[row]
        lanes, start = count * shared, length - count
        work += [(row, first, start, lane, min(LANES, lanes - lane)) for lane in range(0, lanes, LANES)]
    work.sort(key=lambda tile: tile[2] + (tile[3] + tile[4] - 1) // shared, reverse=True)
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
        width, start = shared if count == 1 else LANES, length - count
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
