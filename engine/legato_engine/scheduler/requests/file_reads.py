"""Requests that wait, for a bounded time, until blocks of their prefix are read from files."""

from collections.abc import Iterator

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.disk_tier import Outcome, ReadBlock
from legato_engine.kvcache.prefix_cache import CachedPrefix
from legato_engine.kvcache.sequence_sizes import SequenceSizes
from legato_engine.scheduler.requests.request import Request

PATIENCE = 5.0  # seconds; then the request starts without the blocks that have not arrived
_FORGETTING = 0.9  # factor of the measured time for each request that does not wait, so that it is measured again


class FileReads:
    """Outstanding reads, and the requests that wait for each. A request waits once; blocks that arrive too late are
    cached for other requests. Requests that need the same blocks share a read."""

    def __init__(self, pool: BlockPool, sizes: SequenceSizes) -> None:
        self._pool = pool
        self._sizes = sizes
        self._readers: dict[tuple[int, bytes], list[Request]] = {}  # by group and hash of the block that is read
        self._until: dict[Request, float] = {}  # requests that wait
        self._asked: set[Request] = set()
        self._now = 0.0
        self._seconds_per_block = 0.0

    def begin(self, now: float, seconds_per_block: float) -> None:
        """A plan begins. Reads are not ordered if they take longer than computing a block, which takes
        `seconds_per_block`; 0: unknown."""
        self._now, self._seconds_per_block = now, seconds_per_block
        self._pool.disk.begin(now)

    def waits(self, request: Request, matched: CachedPrefix, hashes: list[bytes]) -> bool:
        """True if the request is to start later. Of its `hashes`, the `matched` ones need not be read."""
        if not self._pool.disk.capacity:
            return False
        if request in self._until:
            reading = any(request in readers for readers in self._readers.values())
            if reading and self._now < self._until[request]:
                return True
            del self._until[request]
            return False
        if request in self._asked:
            return False
        self._asked.add(request)
        if not self._order(request, matched, hashes):
            return False
        self._until[request] = self._now + PATIENCE
        return True

    def on_done(self, outcome: Outcome) -> None:
        """A read or write has ended."""
        if isinstance(outcome.order, ReadBlock):
            content = outcome.order.content
            self._readers.pop((content.group, content.block_hash), None)
        self._pool.host.on_done(outcome)

    def forget(self, request: Request) -> None:
        """The request has started or ended."""
        self._asked.discard(request)
        self._until.pop(request, None)

    def _order(self, request: Request, matched: CachedPrefix, hashes: list[bytes]) -> bool:
        """Orders to read the missing blocks of the longest prefix in any tier, unless they are being read already;
        False if nothing is read."""
        host, disk = self._pool.host, self._pool.disk
        count = disk.longest(hashes, matched.count)
        if count <= matched.count or not self._pays():
            return False
        host.touch(0, hashes[: matched.count])
        waits = False
        for key in list(self._missing(hashes, matched.count, count)):
            if key not in self._readers:
                slot = host.reserve()
                if slot is None:
                    break
                disk.order_read(slot, *key)
                self._readers[key] = []
            self._readers[key].append(request)
            waits = True
        return waits

    def _missing(self, hashes: list[bytes], first: int, count: int) -> Iterator[tuple[int, bytes]]:
        """Group and hash of blocks that only files have, of a prefix of `count` blocks."""
        firsts = self._sizes.first_blocks(count * self._sizes.block_size)
        for group, begin in enumerate((first, *firsts)):
            for block_hash in hashes[begin:count]:
                if not self._pool.has(group, block_hash) and self._pool.disk.has(group, block_hash):
                    yield group, block_hash

    def _pays(self) -> bool:
        disk = self._pool.disk
        if not self._seconds_per_block or disk.seconds_per_read <= self._seconds_per_block:
            return True
        disk.seconds_per_read *= _FORGETTING
        return False
