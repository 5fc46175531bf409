"""Numbers of blocks of all groups of layers that sequences take. Pure."""

from dataclasses import dataclass

from legato_engine.kvcache.groups import first_block
from legato_protocol.wire.kv_windows import sequence_blocks, window_blocks


@dataclass(frozen=True, slots=True)
class SequenceSizes:
    """Numbers of blocks of all groups that sequences take. A step computes at most `chunk_tokens` of a prompt."""

    block_size: int
    windows: tuple[int, ...] = ()
    chunk_tokens: int = 0

    def first_blocks(self, position: int) -> tuple[int, ...]:
        """The first block that a token at `position` sees, in each group with a window."""
        return tuple([first_block(window, position, self.block_size) for window in self.windows])

    def most_of_windows(self) -> tuple[int, ...]:
        """The maximum of blocks in each window's table of a prompt that is computed in chunks."""
        return tuple([window_blocks(window, self.chunk_tokens, self.block_size) for window in self.windows])

    def decoding(self, tokens: int) -> int:
        """Blocks of a sequence with KV of `tokens` positions that is decoded."""
        if not self.windows:  # without a call: it is asked for each sequence in each report
            return -(-tokens // self.block_size)
        return sequence_blocks(tokens, self.block_size, self.windows)

    def most(self, tokens: int) -> int:
        """The maximum of blocks while a sequence grows from its prompt to `tokens` positions."""
        return sequence_blocks(tokens, self.block_size, self.windows, self._most_tokens)

    @property
    def _most_tokens(self) -> int:
        """The most positions after a window in a table: of a chunk, or those that a hand-off reserves."""
        return max(self.chunk_tokens, 2 * self.block_size)

    def largest(self, blocks: int) -> int:
        """Tokens of the longest sequence that `blocks` are enough for."""
        each = [window_blocks(window, self._most_tokens, self.block_size) for window in self.windows]
        within = blocks // (1 + len(each))  # of each group, if no window has ended
        for limit in sorted(each):
            if within < limit:
                break
            blocks -= limit
            each.remove(limit)
            within = blocks // (1 + len(each))
        return within * self.block_size
