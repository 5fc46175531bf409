"""The rows of a batch as flat arrays: everything that a backend needs to know of a step."""

from collections.abc import Sequence

import numpy as np

from legato_engine.layers.inputs import StepInputs
from legato_engine.scheduler.batch import Row


def build(rows: Sequence[Row], block_size: int) -> StepInputs:
    """Row after row. A block table may be longer than its row needs: only blocks that hold something are taken."""
    starts, lengths, sampled = [0], list[int](), list[int]()
    tokens = list[int]()
    for row in rows:
        tokens.extend(row.tokens)
        starts.append(len(tokens))
        lengths.append(row.start + len(row.tokens))
        if row.draws:
            sampled.append(len(tokens) - 1)
    positions, slots = np.empty(len(tokens), np.int64), np.empty(len(tokens), np.int64)
    tables = np.empty((len(rows), -(-max(lengths) // block_size)), np.int64)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        held, mine = -(-length // block_size), slice(starts[index], starts[index + 1])
        tables[index, :held] = row.blocks[:held]
        tables[index, held:] = row.blocks[0]
        positions[mine] = np.arange(row.start, length)
        slots[mine] = tables[index, positions[mine] // block_size] * block_size + positions[mine] % block_size
    return StepInputs(
        tokens=np.array(tokens, np.int64),
        positions=positions,
        slots=slots,
        starts=np.array(starts, np.int64),
        lengths=np.array(lengths, np.int64),
        tables=tables,
        sampled=np.array(sampled, np.int64),
    )
