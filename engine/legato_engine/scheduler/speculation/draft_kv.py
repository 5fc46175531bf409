"""The KV of a draft model: positions of each block that it has computed.

Its arena has a block for each of the model's, with the same number and for the same tokens, as in vLLM. So it needs no
tables of its own, and what sequences share is computed once: the prefix cache, forks and resumed sequences bring the
draft model's KV, too. A block that was allocated again, whatever was written to it since, has none.
"""

from collections.abc import Sequence

from legato_engine.kvcache.block_pool import BlockPool


class DraftKV:
    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._size = block_size
        self._uses = [0] * pool.size  # `pool.uses` when the block was filled
        self._filled = [0] * pool.size  # leading positions

    def ready(self, blocks: Sequence[int]) -> int:
        """Leading positions of a sequence in `blocks` that are computed."""
        uses, own, filled, size = self._pool.uses, self._uses, self._filled, self._size
        count = 0
        for block in blocks:
            if own[block] != uses[block]:
                break
            count += filled[block]
            if filled[block] < size:
                break
        return count

    def fill(self, blocks: Sequence[int], start: int, end: int) -> None:
        """Positions `start … end - 1` of a sequence in `blocks` are computed, as all before them are."""
        for index in range(start // self._size, -(-end // self._size)):
            block = blocks[index]
            self._uses[block] = self._pool.uses[block]
            self._filled[block] = min(self._size, end - index * self._size)
