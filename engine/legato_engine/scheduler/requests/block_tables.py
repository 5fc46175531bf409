"""The block tables of requests: the only place where they grow, are shared, copied on write, stored and freed."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.groups import first_block
from legato_engine.kvcache.moves import Move
from legato_engine.kvcache.prefix_cache import CachedPrefix
from legato_engine.kvcache.sequence_sizes import SequenceSizes
from legato_engine.kvcache.window_table import WindowTable
from legato_engine.scheduler.requests.file_reads import FileReads
from legato_engine.scheduler.requests.request import Request
from legato_protocol.wire.block_hash import child, root
from legato_protocol.wire.packed_tokens import pack_tokens


class MovedBlocks(Protocol):
    """A user of blocks whose memory steps may still move: `moving` of these steps are not processed."""

    moving: int


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step in flight: the requests of its rows, its moves, users of blocks that wait for them, and blocks to free
    once it is processed."""

    requests: frozenset[Request]
    moves: tuple[Move, ...]
    moving: list[MovedBlocks]
    freed: list[list[int]] = field(default_factory=list)


@dataclass(slots=True)
class _WindowPlan:
    """The table of a window from block `first` on: cached blocks of the arena (None: to restore), up to block `end`."""

    first: int
    cached: list[int | None]
    end: int

    @property
    def in_arena(self) -> list[int]:
        return [block for block in self.cached if block is not None]

    @property
    def missing(self) -> int:
        """Number of blocks to allocate."""
        return self.end - self.first - len(self.in_arena)


class BlockTables:
    """Block tables over a pool. A step in flight keeps every block that its rows and copies use.

    Blocks that are allocated while moves are planned or in flight may have content that is on its way out or in. Steps
    come after these moves; everything else waits for `Request.moving` to be 0.

    There may be two steps in flight; the second one copies nothing. All tables of a request grow together: the first
    group's keeps all blocks, and tables of windows release the earlier ones.
    """

    def __init__(self, pool: BlockPool, sizes: SequenceSizes, kv_revision: str) -> None:
        self.pool = pool
        self.block_size = sizes.block_size
        self._sizes = sizes
        self._most_of_windows = sizes.most_of_windows()
        self._kv_revision = kv_revision
        self.copies: list[tuple[int, int]] = []
        self._copied: Counter[int] = Counter()  # sources in `copies`: references to release after the step
        self._flights: deque[_Flight] = deque()
        self.reads = FileReads(pool, sizes)
        self._moving: list[MovedBlocks] = []  # users that wait for moves that no step has taken yet
        self.computing: dict[bytes, Request] = {}  # the request that will store the block of this hash
        self.shared_tokens = 0  # prompt tokens in blocks that another sequence was using when a sequence started

    # ── steps ──

    def begin_step(self) -> None:
        self.copies = []

    def launch(self, requests: list[Request]) -> tuple[Move, ...]:
        """A step with rows of `requests` is in flight from now on. Returns the moves that it does first."""
        moves, moving = self.pool.host.take_moves(), self._moving
        self._moving = []
        self._flights.append(_Flight(frozenset(requests), moves, moving))
        return moves

    def in_flight(self, request: Request) -> bool:
        """True if a step uses the request's blocks, or moves to and from their memory are not done."""
        return request.moving > 0 or any(request in flight.requests for flight in self._flights)

    def end_step(self) -> None:
        """The first step in flight was processed: releases the blocks that it kept."""
        flight = self._flights.popleft()
        for source, count in self._copied.items():
            for _ in range(count):
                self.pool.release((source,))
        self._copied.clear()
        for blocks in flight.freed:
            self.pool.release(blocks)
        for user in flight.moving:
            user.moving -= 1
        self.pool.host.on_moved(flight.moves)

    # ── content ──

    def hashes(self, request: Request, count: int) -> list[bytes]:
        """Hashes of at least the first `count` blocks of the request's known tokens."""
        hashes, size = request.hashes, self.block_size
        while len(hashes) < count:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else root(self._kv_revision, request.adapter, request.cache_salt)
            hashes.append(child(parent, pack_tokens(request.tokens[start : start + size])))
        return hashes

    def match(self, request: Request, count: int) -> CachedPrefix:
        """The cached leading part of the first `count` blocks of the request's tokens.

        Windows have the blocks that the next token sees. Takes no references. Blocks from which requested prompt
        logprobs follow are not matched: logits are not cached.
        """
        if request.scoring:
            count = min(count, (request.scored - 1) // self.block_size)
        return self.pool.cache.match_all(self.hashes(request, count)[:count])

    def is_being_computed(self, request: Request, matched: int) -> bool:
        """True if another request is computing the block after the first `matched` ones."""
        count = (len(request.tokens) - 1) // self.block_size
        if matched >= count or request.scoring:
            return False
        owner = self.computing.get(self.hashes(request, count)[matched])
        return owner is not None and owner is not request and owner.schedulable

    def is_arriving(self, request: Request, matched: CachedPrefix) -> bool:
        """True if the request is to start later, because further blocks of its prefix are being read from files."""
        count = (len(request.tokens) - 1) // self.block_size
        return not request.scoring and self.reads.waits(request, matched, self.hashes(request, count)[:count])

    def missing(self, request: Request, matched: CachedPrefix, blocks: int) -> int:
        """Number of `pool.available` blocks that `open` takes, including cached ones that nobody uses."""
        cached, missing = matched.blocks, blocks - len(matched.blocks)
        for plan in self._windows(request, matched, blocks):
            cached, missing = cached + plan.in_arena, missing + plan.missing
        return missing + sum(1 for block in cached if not self.pool.references(block))

    def count_exclusive(self, requests: list[Request]) -> int:
        """Number of blocks that only `requests` use: available once all of them have released theirs."""
        owners = Counter(block for request in requests for blocks in tables_of(request) for block in blocks)
        return sum(self.pool.references(block) == count for block, count in owners.items())

    # ── tables ──

    def open(self, request: Request, matched: CachedPrefix, blocks: int) -> None:
        """Gives `request` a table of `blocks`: the cached blocks `matched` and fresh ones, which must be available.

        Tables of windows begin with the cached blocks that the next token sees, and have room for a window and a chunk.
        Tables of an incoming transfer reach as far as the first group's. Cached blocks that only the host has are
        restored to fresh ones.
        """
        if not (request.reserved_blocks or request.preempted):  # it starts for the first time
            self.shared_tokens += self.block_size * sum(self.pool.references(block) > 0 for block in matched.blocks)
        first = _WindowPlan(0, [*matched.blocks, *[None] * (matched.count - len(matched.blocks))], blocks)
        tables = [first, *self._windows(request, matched, blocks)]
        for table in tables:
            self.pool.take(table.in_arena)
        held = [self._hold(request, group, table) for group, table in enumerate(tables)]
        fresh = self.pool.allocate(
            sum(table.missing for table in tables), matched.blocks[-1] if matched.blocks else None
        )
        assert fresh is not None
        of_groups = [
            self._fill(table, _cut(fresh, table.missing), slots) for table, slots in zip(tables, held, strict=True)
        ]
        request.blocks = of_groups[0]
        request.windows = tuple([WindowTable(t.first, own) for t, own in zip(tables[1:], of_groups[1:], strict=True)])
        request.stored = matched.count
        request.computed = matched.count * self.block_size
        request.writable = 0
        self.reads.forget(request)
        self.await_moves(request)

    def await_moves(self, user: MovedBlocks) -> None:
        """Makes the user of blocks wait for the last step that has moves, or will have them."""
        if self.pool.host.pending:
            self._moving.append(user)
            user.moving += 1
        elif flight := next((flight for flight in reversed(self._flights) if flight.moves), None):
            flight.moving.append(user)
            user.moving += 1

    def first_blocks(self, position: int) -> tuple[int, ...]:
        """The first block that a token at `position` sees, in each group with a window."""
        return self._sizes.first_blocks(position)

    def announce(self, request: Request) -> None:
        """Registers that `request` will compute all of its known full blocks, so that others wait for them."""
        full = len(request.tokens) // self.block_size
        for block_hash in self.hashes(request, full)[request.stored : full]:
            self.computing[block_hash] = request

    def grow(self, request: Request, tokens: int) -> int:
        """Allocates blocks to write positions `computed … tokens - 1`. Returns the number that is lacking (0: done)."""
        if tokens <= request.writable:
            return 0
        if request.windows:
            # A later sequence may continue at the beginning of the current block.
            firsts = self.first_blocks(request.computed // self.block_size * self.block_size)
            self.move_windows(request, request.releasable(firsts))
        blocks, size = request.blocks, self.block_size
        end = -(-tokens // size)
        index, used = divmod(request.computed, size)
        split = used > 0 and self._shared(blocks[index])
        missing = [max(0, end - len(blocks)), *self._missing_of_windows(request, end)]
        if count := sum(missing) + split * len(missing):
            fresh = self.pool.allocate(count, blocks[-1] if blocks else None)
            if fresh is None:
                return count - self.pool.available
            if split:
                self._split(blocks, index, fresh.pop(0))
                for table in request.windows:
                    self._split(table, index, fresh.pop(0))
            blocks.extend(_cut(fresh, missing[0]))
            for windowed, lacking in zip(request.windows, missing[1:], strict=True):
                windowed.blocks.extend(_cut(fresh, lacking))
        request.writable = min([len(blocks), *[table.end for table in request.windows]]) * size
        return 0

    def move_windows(self, request: Request, firsts: Sequence[int]) -> None:
        """Releases blocks of windows before the blocks `firsts`. A step in flight keeps them until its end."""
        for group, first in enumerate(firsts):
            table = request.windows[group]
            if first > table.first:
                request.windows = (*request.windows[:group], table.since(first), *request.windows[group + 1 :])
                self._release(request, table.before(first))

    def shorten(self, request: Request) -> None:
        """Releases all blocks from the request's next position on, which is the first one of a block."""
        end = request.computed // self.block_size
        for blocks in (request.blocks[end:], *[table.since(end).blocks for table in request.windows]):
            self.pool.release(blocks)
        del request.blocks[end:]
        request.windows = tuple([WindowTable(table.first, table.before(end)) for table in request.windows])
        request.stored = min(request.stored, end)

    def is_exclusive(self, request: Request) -> bool:
        """True if no other request reads the block of the next position, or that block is not allocated yet."""
        index, used = divmod(request.computed, self.block_size)
        return used == 0 or not self._shared(request.blocks[index])

    def share(self, request: Request, choice: int) -> Request:
        """Returns a copy of the sequence for one choice, on the blocks that hold its KV.

        Both requests copy the last blocks before they write to them.
        """
        request.writable = 0
        end = -(-request.computed // self.block_size)
        windows = tuple([WindowTable(table.first, table.before(end)) for table in request.windows])
        branch = request.fork(choice, request.blocks[:end], windows)
        for blocks in tables_of(branch):
            self.pool.take(blocks)
        return branch

    def store(self, request: Request) -> bool:
        """Adds blocks that became full to the prefix cache; False if there are none."""
        if request.computed < (request.stored + 1) * self.block_size:
            return False
        full = min(request.computed, len(request.tokens)) // self.block_size
        hashes = self.hashes(request, full)
        for index in range(request.stored, full):
            parent = hashes[index - 1] if index else None
            request.blocks[index] = self._store(request, 0, request.blocks[index], hashes[index], parent)
            for group, table in enumerate(request.windows, 1):
                if index >= table.first:
                    table[index] = self._store(request, group, table[index], hashes[index], parent)
            if self.computing.get(hashes[index]) is request:
                del self.computing[hashes[index]]
        request.stored = full
        return True

    def release(self, request: Request) -> None:
        """Releases the request's blocks: full ones stay cached, ones in a step in flight are kept until its end."""
        self.reads.forget(request)
        for block_hash in request.hashes[request.stored :]:
            if self.computing.get(block_hash) is request:
                del self.computing[block_hash]
        request.most_blocks = max(request.most_blocks, request.held_blocks)
        tables = tables_of(request)
        request.blocks, request.windows = [], ()  # new ones: a row in flight still reads the old ones
        request.computed = request.stored = request.writable = 0
        for blocks in tables:
            self._release(request, blocks)

    def check_writable(self, request: Request) -> None:
        """Raises AssertionError if the request could write to a block that others read."""
        size = self.block_size
        first, last = request.computed // size, request.writable // size
        for blocks in (request.blocks[first:last], *(table.since(first).before(last) for table in request.windows)):
            for block in blocks:
                assert not self._shared(block), f"block {block} is shared and written to"

    def check_windows(self, request: Request) -> None:
        """Raises AssertionError if a window lacks a block that the next token sees, or has blocks beyond the request's
        first table."""
        for window, table in zip(self._sizes.windows, request.windows, strict=bool(request.blocks)):
            first = first_block(window, request.computed, self.block_size)
            assert table.first <= first or not request.computed, f"a window begins with {table.first}, not {first}"
            assert -(-request.computed // self.block_size) <= table.end <= len(request.blocks), (
                "a window ends elsewhere"
            )

    def check_integrity(self, tables: list[list[int]]) -> None:
        """Raises AssertionError unless the pool's references match `tables` and the steps in flight."""
        expected = Counter(self._copied)
        for table in [*tables, *[blocks for flight in self._flights for blocks in flight.freed]]:
            expected.update(table)
        held = self.pool.used_blocks()
        wrong = next((block for block in {*held, *expected} if held.get(block, 0) != expected[block]), None)
        assert wrong is None, f"block {wrong} has {held.get(wrong, 0)} references and {expected[wrong]} owners"
        self.pool.check_integrity()

    def _windows(self, request: Request, matched: CachedPrefix, blocks: int) -> list[_WindowPlan]:
        """The table of each window that `open` makes."""
        size, known, count = self.block_size, len(request.tokens), matched.count
        position = count * size
        if request.incoming:  # its source has computed at least all known tokens but the last
            position = max(position, (known - 1) // size * size)
        tables = list[_WindowPlan]()
        for group, (window, most) in enumerate(zip(self._sizes.windows, self._most_of_windows, strict=True), 1):
            first = first_block(window, position, size)
            cached = [self.pool.cache.find(each, group) for each in request.hashes[first:count]]
            # Blocks that others use are not free when the window leaves them.
            start = count if any(block is not None and self.pool.references(block) for block in cached) else first
            end = blocks if request.incoming else min(blocks, start + most)
            tables.append(_WindowPlan(first, cached, end))
        return tables

    def _hold(self, request: Request, group: int, table: _WindowPlan) -> list[int]:
        """The slots of the blocks to restore, which keep their content until `_fill`."""
        hashes, cached = request.hashes[table.first :], table.cached
        return [self.pool.host.hold(group, hashes[i]) for i, block in enumerate(cached) if block is None]

    def _fill(self, table: _WindowPlan, fresh: list[int], slots: list[int]) -> list[int]:
        """The blocks of a table: cached ones, fresh ones that held slots are moved to, and fresh ones after these."""
        blocks, left = list[int](), iter(slots)
        for block in table.cached:
            if block is None:
                block = fresh.pop(0)
                self.pool.restore(next(left), block)
            blocks.append(block)
        return blocks + fresh

    def _missing_of_windows(self, request: Request, end: int) -> list[int]:
        """Number of blocks that each window's table lacks up to block `end`, or, in a prompt, for a window and a chunk.

        A prompt's table keeps its size, so that each chunk takes as many blocks as it releases, and none from others:
        a granted prefill, which nothing preempts, could wait for blocks of another one that waits for its blocks.
        """
        pairs = zip(request.windows, self._most_of_windows[: len(request.windows)], strict=True)
        return [
            max(0, end - table.end, min(len(request.blocks), table.first + most) - table.end) for table, most in pairs
        ]

    def _split(self, table: list[int] | WindowTable, index: int, block: int) -> None:
        """Replaces a shared block of a table by its copy in `block`."""
        source, table[index] = table[index], block
        self.copies.append((source, block))
        self._copied[source] += 1

    def _store(self, request: Request, group: int, own: int, block_hash: bytes, parent: bytes | None) -> int:
        """Adds a full block to the prefix cache; returns the block to use instead, with a reference."""
        self.pool.take((own,))
        stored = self.pool.store(own, block_hash, parent, group)
        self._release(request, [own])  # if the cache had another one, a step in flight may still read this one
        return stored

    def _release(self, request: Request, blocks: list[int]) -> None:
        """Releases blocks of `request` once no step in flight uses them."""
        last = next((flight for flight in reversed(self._flights) if request in flight.requests), None)
        if last is not None:
            last.freed.append(blocks)
        else:
            self.pool.release(blocks)

    def _shared(self, block: int) -> bool:
        references = self.pool.references(block)
        return references > 1 and references - self._copied[block] > 1


def tables_of(request: Request) -> list[list[int]]:
    """The blocks of all groups of a request."""
    return [request.blocks, *[table.blocks for table in request.windows]]


def _cut(blocks: list[int], count: int) -> list[int]:
    """Removes and returns the first `count` blocks."""
    first = blocks[:count]
    del blocks[:count]
    return first
