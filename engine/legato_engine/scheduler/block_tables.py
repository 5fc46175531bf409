"""The blocks of requests: tables grow, are shared, copied on write, stored by hash and given back here only."""

from collections import Counter, deque
from dataclasses import dataclass, field

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.scheduler.request import Request
from legato_protocol.block_hash import child, root
from legato_protocol.packed_tokens import pack_tokens


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step in flight: whose its rows are, and blocks that were given up meanwhile, which it is the last to touch."""

    requests: frozenset[Request]
    given_up: list[list[int]] = field(default_factory=list)


class BlockTables:
    """Block tables over a pool. A step in flight keeps every block that its rows and copies touch; there may be two, of
    which the later one copies nothing."""

    def __init__(self, pool: BlockPool, block_size: int, kv_revision: str) -> None:
        self.pool = pool
        self.block_size = block_size
        self._kv_revision = kv_revision
        self.copies: list[tuple[int, int]] = []
        self._copied: Counter[int] = Counter()  # sources in `copies`: references given up, but not yet
        self._flying: deque[_Flight] = deque()
        self.computing: dict[bytes, Request] = {}  # who will store the block of this hash
        self.shared_tokens = 0  # prompt tokens in blocks that another sequence was using when a sequence began

    # ── steps ──

    def begin_step(self) -> None:
        self.copies = []

    def fly(self, requests: list[Request]) -> None:
        """The rows of a step that is in flight from now on belong to `requests`."""
        self._flying.append(_Flight(frozenset(requests)))

    def in_flight(self, request: Request) -> bool:
        return any(request in flight.requests for flight in self._flying)

    def end_step(self) -> None:
        """The first step in flight was processed: what it alone held is given back."""
        flight = self._flying.popleft()
        for source, count in self._copied.items():
            for _ in range(count):
                self.pool.release((source,))
        self._copied.clear()
        for blocks in flight.given_up:
            self.pool.release(blocks)

    # ── content ──

    def hashes(self, request: Request, count: int) -> list[bytes]:
        """Hashes of the first `count` blocks of its known tokens (and maybe more)."""
        hashes, size = request.hashes, self.block_size
        while len(hashes) < count:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else root(self._kv_revision, request.adapter, request.cache_salt)
            hashes.append(child(parent, pack_tokens(request.tokens[start : start + size])))
        return hashes

    def match(self, request: Request, count: int) -> list[int]:
        """Stored blocks for a leading part of the first `count` blocks of its known tokens; no reference is taken.

        What logprobs of the prompt follow from is computed anew: no cache has it."""
        if request.scoring:
            count = min(count, (request.scored - 1) // self.block_size)
        return self.pool.cache.match(self.hashes(request, count)[:count])

    def awaited(self, request: Request, matched: int) -> bool:
        """Whether someone else is computing the block that follows the first `matched` ones."""
        count = (len(request.tokens) - 1) // self.block_size
        if matched >= count or request.scoring:
            return False
        owner = self.computing.get(self.hashes(request, count)[matched])
        return owner is not None and owner is not request and owner.schedulable

    def missing(self, matched: list[int], blocks: int) -> int:
        """How many of `pool.available` go when `matched` is taken and `blocks` in all are owned."""
        evictable = sum(1 for block in matched if not self.pool.references(block))
        return blocks - len(matched) + evictable

    def owned_alone(self, requests: list[Request]) -> int:
        """Blocks that only `requests` hold: available once all of these have given them back."""
        owners = Counter(block for request in requests for block in request.blocks)
        return sum(self.pool.references(block) == count for block, count in owners.items())

    # ── tables ──

    def open(self, request: Request, matched: list[int], blocks: int) -> None:
        """Give `request` the stored blocks `matched` and fresh ones, `blocks` in all: `missing` ones are available."""
        if not (request.reserved_blocks or request.preempted):  # else it began before
            self.shared_tokens += self.block_size * sum(self.pool.references(block) > 0 for block in matched)
        self.pool.take(matched)
        fresh = self.pool.allocate(blocks - len(matched), matched[-1] if matched else None)
        assert fresh is not None
        request.blocks = matched + fresh
        request.stored = len(matched)
        request.computed = len(matched) * self.block_size
        request.writable = 0

    def announce(self, request: Request) -> None:
        """`request` is going to compute all its known full blocks: others wait for them instead of computing too."""
        full = len(request.tokens) // self.block_size
        for block_hash in self.hashes(request, full)[request.stored : full]:
            self.computing[block_hash] = request

    def grow(self, request: Request, tokens: int) -> int:
        """Make room to write positions `computed … tokens - 1`; returns how many blocks that lacks (0: done)."""
        if tokens <= request.writable:
            return 0
        blocks, size = request.blocks, self.block_size
        missing = -(-tokens // size) - len(blocks)
        index, used = divmod(request.computed, size)
        split = used > 0 and self._shared(blocks[index])
        if missing > 0 or split:
            want = max(missing, 0) + split
            fresh = self.pool.allocate(want, blocks[-1] if blocks else None)
            if fresh is None:
                return want - self.pool.available
            if split:
                source, blocks[index] = blocks[index], fresh.pop(0)
                self.copies.append((source, blocks[index]))
                self._copied[source] += 1
            blocks.extend(fresh)
        request.writable = len(blocks) * size
        return 0

    def owned(self, request: Request) -> bool:
        """Whether nobody else reads the block that its next position lies in, if it has that already."""
        index, used = divmod(request.computed, self.block_size)
        return used == 0 or not self._shared(request.blocks[index])

    def share(self, request: Request) -> list[int]:
        """The blocks that hold its KV, with a reference more on each for one more table. Either copies the last of them
        before it writes there."""
        request.writable = 0
        shared = request.blocks[: -(-request.computed // self.block_size)]
        self.pool.take(shared)
        return shared

    def store(self, request: Request) -> bool:
        """Make blocks that became full findable; False when none did."""
        if request.computed < (request.stored + 1) * self.block_size:
            return False
        full = min(request.computed, len(request.tokens)) // self.block_size
        hashes = self.hashes(request, full)
        for index in range(request.stored, full):
            parent, own = hashes[index - 1] if index else None, request.blocks[index]
            self.pool.take((own,))
            request.blocks[index] = self.pool.store(own, hashes[index], parent)
            self._release(request, [own])  # if another has it, a step in flight may read this one still
            if self.computing.get(hashes[index]) is request:
                del self.computing[hashes[index]]
        request.stored = full
        return True

    def release(self, request: Request) -> None:
        """Its blocks go back: full ones stay findable. Those of a step in flight go when it was processed."""
        for block_hash in request.hashes[request.stored :]:
            if self.computing.get(block_hash) is request:
                del self.computing[block_hash]
        request.most_blocks = max(request.most_blocks, len(request.blocks))
        blocks, request.blocks = request.blocks, []  # a new list: a row in flight still reads the old one
        request.computed = request.stored = request.writable = 0
        self._release(request, blocks)

    def check_writable(self, request: Request) -> None:
        """Raise AssertionError if it could write to a block that others read."""
        size = self.block_size
        for block in request.blocks[request.computed // size : request.writable // size]:
            assert not self._shared(block), f"block {block} is written to by one of those that share it"

    def check_integrity(self, tables: list[list[int]]) -> None:
        """Raise AssertionError unless the pool's references are exactly those of `tables` and of steps in flight."""
        expected = Counter(self._copied)
        for table in [*tables, *[blocks for flight in self._flying for blocks in flight.given_up]]:
            expected.update(table)
        held = self.pool.held()
        wrong = next((block for block in {*held, *expected} if held.get(block, 0) != expected[block]), None)
        assert wrong is None, f"block {wrong} has {held.get(wrong, 0)} references and {expected[wrong]} owners"
        self.pool.check_integrity()

    def _release(self, request: Request, blocks: list[int]) -> None:
        """Give up blocks of `request`, once no step in flight touches them."""
        last = next((flight for flight in reversed(self._flying) if request in flight.requests), None)
        if last is not None:
            last.given_up.append(blocks)
        else:
            self.pool.release(blocks)

    def _shared(self, block: int) -> bool:
        references = self.pool.references(block)
        return references > 1 and references - self._copied[block] > 1
