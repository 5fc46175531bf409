"""Cached blocks that are being sent to workers that asked for them. Each loan references its blocks until its end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from legato_engine.kvcache.sequence_sizes import SequenceSizes
from legato_engine.kvcache.window_table import WindowTable
from legato_engine.scheduler.requests.block_tables import BlockTables

LoanKey = tuple[int, int]  # room and attempt


@dataclass(eq=False, slots=True)
class Loan:
    """All blocks of a cached prefix, and its blocks of windows. Blocks from number `first` on are sent.

    The earlier ones are kept as well, since all ancestors of a cached block are cached.
    """

    first: int
    blocks: list[int]
    windows: tuple[WindowTable, ...] = ()
    moving: int = 0  # steps that may still restore some of them: they are not sent before

    @property
    def tables(self) -> list[list[int]]:
        return [self.blocks, *[table.blocks for table in self.windows]]


class BlockLoans:
    """References blocks on loan, so that they are neither evicted nor changed."""

    def __init__(self, tables: BlockTables, sizes: SequenceSizes) -> None:
        self._tables = tables
        self._pool = tables.pool
        self._sizes = sizes
        self._loans: dict[LoanKey, Loan] = {}

    def __len__(self) -> int:
        return len(self._loans)

    def __iter__(self) -> Iterator[Loan]:
        return iter(self._loans.values())

    def lend(self, key: LoanKey, first: int, hashes: Sequence[bytes], firsts: Sequence[int] = ()) -> Loan | None:
        """Lends the longest usable run of cached blocks of these hashes; None if the first one is not cached.

        `hashes[i]` is the hash of a sequence's block number `first + i`. In groups with a window, the borrower has room
        from the blocks `firsts` on: None if it lacks room for the window of the token that follows. ValueError if `key`
        has a loan.
        """
        if key in self._loans:
            raise ValueError(f"room {key[0]} has a loan")
        cache = self._pool.cache
        blocks = cache.match(hashes)
        end = first + len(blocks)
        sees = self._sizes.first_blocks(end * self._sizes.block_size)
        if not blocks or any(room > max(seen, first) for room, seen in zip(firsts, sees, strict=True)):
            return None
        starts = enumerate([max(seen, first) for seen in sees], 1)
        windows = tuple([self._window(group, start, hashes[start - first : len(blocks)]) for group, start in starts])
        loan = self._loans[key] = Loan(first, cache.path(blocks[-1]), windows)
        for table in loan.tables:
            self._pool.take(table)
        self._tables.await_moves(loan)
        return loan

    def end(self, key: LoanKey) -> None:
        """Nothing reads the blocks any longer. Ignored without such a loan."""
        if (loan := self._loans.pop(key, None)) is not None:
            for table in loan.tables:
                self._pool.release(table)

    def _window(self, group: int, start: int, hashes: Sequence[bytes]) -> WindowTable:
        of_hashes = [self._pool.cache.find(each, group) for each in hashes]
        assert None not in of_hashes, "a usable prefix lacks a block of a window"
        return WindowTable(start, [block for block in of_hashes if block is not None])
