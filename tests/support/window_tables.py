"""Block tables of a test's rows in groups of layers with a window."""

from collections.abc import Sequence
from typing import Any

from legato_engine.kvcache.groups import first_block
from legato_engine.kvcache.window_table import WindowTable


def of_row(runner: Any, blocks: Sequence[int], start: int = 0) -> tuple[WindowTable, ...]:
    """Tables for a row that begins at position `start`: its `blocks`, moved to a part of the arena for each group."""
    layout, groups = runner.layout, 1 + len(runner.layout.windows)
    part = runner.num_blocks // groups
    assert not layout.windows or max(blocks) < part, "the arena is too small"
    tables = []
    for group, window in enumerate(layout.windows, 1):
        first = first_block(window, start, layout.block_size)
        tables.append(WindowTable(first, [block + group * part for block in blocks[first:]]))
    return tuple(tables)
