"""Numbers of KV blocks that sequences take in groups of layers: the first group keeps all positions, further ones the
last positions of a window. Workers allocate them, and gateways estimate them for the same layout."""

from collections.abc import Sequence


def window_blocks(window: int, tokens: int, block_size: int) -> int:
    """Returns the maximum number of blocks of a window's table that is to hold the next `tokens` positions, too."""
    return -(-(window - 1) // block_size) - (-(tokens - 1) // block_size) + 1


def sequence_blocks(tokens: int, block_size: int, windows: Sequence[int], step: int = 1) -> int:
    """Returns the blocks in all groups of a sequence of `tokens`, of which a step computes at most `step`."""
    count = -(-tokens // block_size)
    if not windows:
        return count
    return count + sum([min(count, window_blocks(window, step, block_size)) for window in windows])
