"""The block tables of requests: the only place where they grow, are shared, copied on write, stored and freed."""

from collections import Counter, deque
from dataclasses import dataclass, field

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.scheduler.requests.request import Request
from legato_protocol.wire.block_hash import child, root
from legato_protocol.wire.packed_tokens import pack_tokens


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step in flight: the requests of its rows, and blocks to free once it is processed."""

    requests: frozenset[Request]
    freed: list[list[int]] = field(default_factory=list)


class BlockTables:
    """Block tables over a pool. A step in flight keeps every block that its rows and copies use.

    There may be two steps in flight; the second one copies nothing.
    """

    def __init__(self, pool: BlockPool, block_size: int, kv_revision: str) -> None:
        self.pool = pool
        self.block_size = block_size
        self._kv_revision = kv_revision
        self.copies: list[tuple[int, int]] = []
        self._copied: Counter[int] = Counter()  # sources in `copies`: references to release after the step
        self._flights: deque[_Flight] = deque()
        self.computing: dict[bytes, Request] = {}  # the request that will store the block of this hash
        self.shared_tokens = 0  # prompt tokens in blocks that another sequence was using when a sequence started

    # ── steps ──

    def begin_step(self) -> None:
        self.copies = []

    def launch(self, requests: list[Request]) -> None:
        """A step with rows of `requests` is in flight from now on."""
        self._flights.append(_Flight(frozenset(requests)))

    def in_flight(self, request: Request) -> bool:
        return any(request in flight.requests for flight in self._flights)

    def end_step(self) -> None:
        """The first step in flight was processed: releases the blocks that it kept."""
        flight = self._flights.popleft()
        for source, count in self._copied.items():
            for _ in range(count):
                self.pool.release((source,))
        self._copied.clear()
        for blocks in flight.freed:
            self.pool.release(blocks)

    # ── content ──

    def hashes(self, request: Request, count: int) -> list[bytes]:
        """Hashes of at least the first `count` blocks of the request's known tokens."""
        hashes, size = request.hashes, self.block_size
        while len(hashes) < count:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else root(self._kv_revision, request.adapter, request.cache_salt)
            hashes.append(child(parent, pack_tokens(request.tokens[start : start + size])))
        return hashes

    def match(self, request: Request, count: int) -> list[int]:
        """Cached blocks for a leading part of the first `count` blocks of the request's tokens; takes no references.

        Blocks from which requested prompt logprobs follow are not matched: logits are not cached.
        """
        if request.scoring:
            count = min(count, (request.scored - 1) // self.block_size)
        return self.pool.cache.match(self.hashes(request, count)[:count])

    def is_being_computed(self, request: Request, matched: int) -> bool:
        """True if another request is computing the block after the first `matched` ones."""
        count = (len(request.tokens) - 1) // self.block_size
        if matched >= count or request.scoring:
            return False
        owner = self.computing.get(self.hashes(request, count)[matched])
        return owner is not None and owner is not request and owner.schedulable

    def missing(self, matched: list[int], blocks: int) -> int:
        """Number of `pool.available` blocks that a table of `blocks`, including the cached `matched`, takes."""
        evictable = sum(1 for block in matched if not self.pool.references(block))
        return blocks - len(matched) + evictable

    def count_exclusive(self, requests: list[Request]) -> int:
        """Number of blocks that only `requests` use: available once all of them have released theirs."""
        owners = Counter(block for request in requests for block in request.blocks)
        return sum(self.pool.references(block) == count for block, count in owners.items())

    # ── tables ──

    def open(self, request: Request, matched: list[int], blocks: int) -> None:
        """Gives `request` a table of `blocks`: the cached blocks `matched` and fresh ones, which must be available."""
        if not (request.reserved_blocks or request.preempted):  # it starts for the first time
            self.shared_tokens += self.block_size * sum(self.pool.references(block) > 0 for block in matched)
        self.pool.take(matched)
        fresh = self.pool.allocate(blocks - len(matched), matched[-1] if matched else None)
        assert fresh is not None
        request.blocks = matched + fresh
        request.stored = len(matched)
        request.computed = len(matched) * self.block_size
        request.writable = 0

    def announce(self, request: Request) -> None:
        """Registers that `request` will compute all of its known full blocks, so that others wait for them."""
        full = len(request.tokens) // self.block_size
        for block_hash in self.hashes(request, full)[request.stored : full]:
            self.computing[block_hash] = request

    def grow(self, request: Request, tokens: int) -> int:
        """Allocates blocks to write positions `computed … tokens - 1`. Returns the number that is lacking (0: done)."""
        if tokens <= request.writable:
            return 0
        blocks, size = request.blocks, self.block_size
        missing = -(-tokens // size) - len(blocks)
        index, used = divmod(request.computed, size)
        split = used > 0 and self._shared(blocks[index])
        if missing > 0 or split:
            count = max(missing, 0) + split
            fresh = self.pool.allocate(count, blocks[-1] if blocks else None)
            if fresh is None:
                return count - self.pool.available
            if split:
                source, blocks[index] = blocks[index], fresh.pop(0)
                self.copies.append((source, blocks[index]))
                self._copied[source] += 1
            blocks.extend(fresh)
        request.writable = len(blocks) * size
        return 0

    def is_exclusive(self, request: Request) -> bool:
        """True if no other request reads the block of the next position, or that block is not allocated yet."""
        index, used = divmod(request.computed, self.block_size)
        return used == 0 or not self._shared(request.blocks[index])

    def share(self, request: Request) -> list[int]:
        """Returns the blocks that hold the request's KV, with another reference for another table.

        Both requests copy the last block before they write to it.
        """
        request.writable = 0
        shared = request.blocks[: -(-request.computed // self.block_size)]
        self.pool.take(shared)
        return shared

    def store(self, request: Request) -> bool:
        """Adds blocks that became full to the prefix cache; False if there are none."""
        if request.computed < (request.stored + 1) * self.block_size:
            return False
        full = min(request.computed, len(request.tokens)) // self.block_size
        hashes = self.hashes(request, full)
        for index in range(request.stored, full):
            parent, own = hashes[index - 1] if index else None, request.blocks[index]
            self.pool.take((own,))
            request.blocks[index] = self.pool.store(own, hashes[index], parent)
            self._release(request, [own])  # if the cache had another one, a step in flight may still read this one
            if self.computing.get(hashes[index]) is request:
                del self.computing[hashes[index]]
        request.stored = full
        return True

    def release(self, request: Request) -> None:
        """Releases the request's blocks: full ones stay cached, ones in a step in flight are kept until its end."""
        for block_hash in request.hashes[request.stored :]:
            if self.computing.get(block_hash) is request:
                del self.computing[block_hash]
        request.most_blocks = max(request.most_blocks, len(request.blocks))
        blocks, request.blocks = request.blocks, []  # a new list: a row in flight still reads the old one
        request.computed = request.stored = request.writable = 0
        self._release(request, blocks)

    def check_writable(self, request: Request) -> None:
        """Raises AssertionError if the request could write to a block that others read."""
        size = self.block_size
        for block in request.blocks[request.computed // size : request.writable // size]:
            assert not self._shared(block), f"block {block} is shared and written to"

    def check_integrity(self, tables: list[list[int]]) -> None:
        """Raises AssertionError unless the pool's references match `tables` and the steps in flight."""
        expected = Counter(self._copied)
        for table in [*tables, *[blocks for flight in self._flights for blocks in flight.freed]]:
            expected.update(table)
        held = self.pool.used_blocks()
        wrong = next((block for block in {*held, *expected} if held.get(block, 0) != expected[block]), None)
        assert wrong is None, f"block {wrong} has {held.get(wrong, 0)} references and {expected[wrong]} owners"
        self.pool.check_integrity()

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
