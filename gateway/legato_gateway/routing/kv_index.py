"""An index of block hashes that shows which worker has which prefix cached, fed by the workers' KV events. Pure.

For each worker it is exactly the worker's cache after event `number`, the latest one of its epoch. After any doubt (a
gap, a number that goes back, another epoch, a torn snapshot) it is empty until a new snapshot is complete. It never
shows an earlier state of the cache.

A worker is one bit of an integer per hash. `match` walks a prompt's hashes in runs of `RUN` blocks. Since a hash names
its whole prefix, the last hash of a run names all its blocks, and the index caches under it how far into the run each
worker's prefix reaches. Any event about a block of the run invalidates this for the event's worker, so a match is
always exactly the unbroken prefix. Workers are not trusted to evict leaves first.

Workers with windows (`Hello.windows`) announce each prefix after which a sequence can continue by the hash of its last
block, whether or not they announce its beginnings: for them, `match` looks for the last announced hash.

A full index evicts the blocks that were matched or stored least recently. A block evicted from the index only costs
time: the worker counts as not having it. Order of use is kept by block, and a run in use stands for its blocks: it is
spared once when its first block is due (the CLOCK algorithm), so a match only has to mark its runs.

A worker whose cache is empty gets another bit. The old one then means no worker and is swept out of the hashes a few at
a time, since a pass over all of them would delay every stream of the gateway.
"""

from collections import OrderedDict
from itertools import accumulate, repeat
from operator import and_

from legato_gateway.routing.indexed_worker import IndexedWorker
from legato_gateway.routing.prefix_run import PrefixRun
from legato_protocol.wire.block_hash import split
from legato_protocol.wire.kv_events import KVEvent, Removed, Snapshot, Stored

MAX_BLOCKS = 1 << 20
RUN = 32
SWEEP = 1024  # hashes swept per event
CHANCES = 4  # runs in use that are spared before a block is evicted all the same


class KVIndex:
    """The index of one gateway. `max_blocks` bounds its memory (about 300 bytes per block).

    It is never larger than the caches of the fleet together.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self._holders: OrderedDict[bytes, int] = OrderedDict()  # next to be evicted first
        self._runs: dict[bytes, PrefixRun] = {}  # by the last hash
        self._run_of: dict[bytes, PrefixRun] = {}  # by every hash
        self._workers: dict[str, IndexedWorker] = {}
        self._names: dict[int, str] = {}  # of workers, by bit
        self._valid = 0  # bits of workers whose snapshot is complete, without a gap since
        self._windowed = 0  # bits of workers that announce ends of prefixes only
        self.evicted = 0  # blocks evicted for lack of memory, so far
        self.dropped = 0  # blocks of snapshots not added for lack of memory, so far
        self._retired = 0  # bits of no worker that some hashes still have
        self._sweeping = 0  # the retired bits that are being swept out of `_unswept`
        self._unswept: list[bytes] = []

    # ── updates ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def expect(self, worker: str, epoch: str, whole: bool = True) -> None:
        """Expects a snapshot of this epoch: `worker` connected or said `Hello`.

        The same epoch over a new connection starts over as well, since events were lost in between. A worker that is
        not `whole` has windows.
        """
        known = self._workers.get(worker)
        if known is None:
            self._workers[worker] = IndexedWorker(worker, self._take_bit(worker), epoch, whole=whole)
        else:
            seen = known.number if known.epoch == epoch else -1
            self._doubt(known)
            self._workers[worker] = IndexedWorker(worker, known.bit, epoch, seen, whole)
        self._note_windows()

    def forget(self, worker: str) -> None:
        """Removes `worker`."""
        if (known := self._workers.pop(worker, None)) is not None:
            self._doubt(known)
            del self._names[known.bit]
            self._note_windows()
            self._sweep()

    def apply(self, worker: str, event: KVEvent) -> bool:
        """Applies an event. Returns True if events were lost and the worker must be asked for a snapshot.

        Of a snapshot's page, it may only add the beginning: `read_on` adds the rest.
        """
        known = self._workers.get(worker)
        if known is None:
            return False
        lost = self._follow(known, event)
        self._sweep()
        return lost

    def read_on(self, worker: str) -> bool:
        """Adds more of the worker's last event. Returns False if nothing was left; else call it again after a pause."""
        known = self._workers.get(worker)
        if known is None or not known.page:
            return False
        self._read(known)
        return True

    def _follow(self, known: IndexedWorker, event: KVEvent) -> bool:
        while known.page:
            self._read(known)
        if event.epoch != known.epoch:
            return self._doubt(known)
        if isinstance(event, Snapshot):
            return self._page(known, event)
        if event.number != known.number + 1 or known.pages:
            known.number = max(known.number, event.number)
            return self._doubt(known)
        known.number = event.number
        if known.bit & self._valid:
            self._change(known, event)
        return False

    # ── lookups ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, hashes: list[bytes]) -> dict[str, int]:
        """Returns the number of leading blocks of each worker that has the first block, up to its first gap; of workers
        with windows, up to the last block that they have.

        `hashes` are one prompt's, from `block_hash.chain`: each names all before it.
        """
        alive = self._holders.get(hashes[0], 0) & self._valid & ~self._windowed if hashes else 0
        prefixes: dict[str, int] = {}
        runs, size = self._runs, len(hashes)
        for start in range(0, size, RUN):
            if not alive:
                break
            last = start + RUN - 1
            run = runs.get(hashes[last]) if last < size else None
            if run is not None and alive & run.whole == alive:
                run.used = True
                continue
            if run is None or alive & ~run.known:
                run = self._inspect(run or PrefixRun(hashes[start : start + RUN]), alive)
            run.used = True
            if alive & ~run.whole:
                for blocks, workers in run.parts.items():
                    self._note(alive & workers, start + blocks, prefixes)
                alive &= run.whole
        self._note(alive, len(hashes), prefixes)
        self._match_ends(hashes, prefixes)
        return prefixes

    def _match_ends(self, hashes: list[bytes], prefixes: dict[str, int]) -> None:
        """Notes the prefixes of workers with windows."""
        open = self._windowed & self._valid
        for blocks in range(len(hashes) if open else 0, 0, -1):
            if holders := self._holders.get(hashes[blocks - 1], 0) & open:
                self._note(holders, blocks, prefixes)
                self._holders.move_to_end(hashes[blocks - 1])
                open &= ~holders
                if not open:
                    break

    @property
    def blocks(self) -> int:
        """Distinct hashes in the index, including unswept ones of no worker."""
        return len(self._holders)

    def blocks_at(self, worker: str) -> int:
        """Returns the number of hashes that `worker` is known to have."""
        known = self._workers.get(worker)
        return known.blocks if known and known.bit & self._valid else 0

    def check_integrity(self) -> None:
        """Raises AssertionError unless the index is consistent."""
        assert len(self._holders) <= self.max_blocks, "more blocks than allowed"
        assert all(self._holders.values()), "a hash without a holder is kept"
        known = sum(w.bit for w in self._workers.values() if w.pages or w.bit & self._valid)
        assert not known & self._retired, "a worker has a bit that means nobody"
        windowed = sum(w.bit for w in self._workers.values() if not w.whole)
        assert windowed == self._windowed, "a bit of workers with windows is another's"
        assert not any(holders & ~known & ~self._retired for holders in self._holders.values()), "a doubt is held"
        for worker in self._workers.values():
            held = sum(1 for holders in self._holders.values() if holders & worker.bit)
            assert held == worker.blocks, "the hashes of a worker are miscounted"
        for last, run in self._runs.items():
            assert run.whole, "a run without a holder is kept"
            assert not run.whole & ~self._valid & ~self._retired, "a run claims a worker in doubt"
            assert last == run.hashes[-1], "a run is filed wrongly"
            assert run.known == run.whole | sum(run.parts.values()), "a run knows of workers that it has no count of"
            for block in run.hashes:
                assert self._run_of[block] is run, "a block is filed under another run"
            for blocks, workers in [(RUN, run.whole), *run.parts.items()]:
                holding = self._holding(run.hashes, workers)
                assert holding[blocks] == workers, "a run claims a block that is not held"
                assert blocks == RUN or not holding[blocks + 1], "a run denies a block that is held"
        assert len(self._run_of) == RUN * len(self._runs), "runs and their blocks differ"

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _doubt(self, worker: IndexedWorker) -> bool:
        """Discards the worker's blocks. Returns True if this is news and a snapshot must be requested."""
        if not (worker.bit & self._valid or worker.pages):
            return False
        self._valid &= ~worker.bit
        worker.pages = 0
        self._erase(worker)
        return True

    def _page(self, worker: IndexedWorker, page: Snapshot) -> bool:
        if page.number < worker.number:  # outdated: later events came, and may have been dropped
            self._doubt(worker)
            return True
        if page.page == 0:
            self._doubt(worker)
        elif page.page != worker.pages or page.number != worker.page_number:
            worker.number = page.number
            self._doubt(worker)
            return True
        worker.begin(page)
        self._read(worker)
        return False

    def _read(self, worker: IndexedWorker) -> None:
        """Adds the next hashes of the page."""
        self._add(worker, worker.next_hashes())
        if worker.last_page and not worker.page:
            self._valid |= worker.bit
            worker.pages = 0

    def _change(self, worker: IndexedWorker, event: Stored | Removed) -> None:
        if isinstance(event, Stored):
            self._add(worker, split(event.hashes))
        else:
            for block in split(event.hashes):
                self._remove(worker, block)

    # ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, worker: IndexedWorker, hashes: list[bytes]) -> None:
        holders, bit = self._holders, worker.bit
        if len(holders) + len(hashes) > self.max_blocks:
            missing = sum(block not in holders for block in hashes)
            if len(holders) + missing > self.max_blocks:
                self._touch(hashes)
                self._make_room(min(missing, self._share(worker)))
        for block in hashes:
            known = holders.get(block, 0)
            if not known and len(holders) >= self.max_blocks:
                self.dropped += 1
            elif not known & bit:
                worker.blocks += 1
                holders[block] = known | bit
                self._unsettle(block, bit)
        self._touch(hashes)

    def _share(self, worker: IndexedWorker) -> int:
        """Returns the blocks that it may evict from others: any for new blocks, few for a snapshot of unknown age."""
        return self.max_blocks // len(self._workers) - worker.blocks if worker.pages else self.max_blocks

    def _remove(self, worker: IndexedWorker, block: bytes) -> None:
        if self._holders.get(block, 0) & worker.bit:
            worker.blocks -= 1
            self._clear(block, worker.bit)

    def _clear(self, block: bytes, bits: int) -> None:
        """Removes `bits` from the block's holders."""
        if left := self._holders[block] & ~bits:
            self._holders[block] = left
        else:
            del self._holders[block]
        self._unsettle(block, bits)

    def _erase(self, worker: IndexedWorker) -> None:
        """Empties the worker's part of the index. Its old bit is left to be swept."""
        if not worker.blocks:
            return
        old, worker.blocks = worker.bit, 0
        self._retired |= old
        worker.bit = self._take_bit(worker.name)
        self._note_windows()
        del self._names[old]
        if self._valid & old:
            self._valid ^= old | worker.bit

    def _note_windows(self) -> None:
        """Collects the bits of workers with windows; a bit that no worker has may be another's next."""
        self._windowed = sum(each.bit for each in self._workers.values() if not each.whole)

    def _take_bit(self, worker: str) -> int:
        used = sum(self._names) | self._retired
        bit = ~used & (used + 1)
        self._names[bit] = worker
        return bit

    def _make_room(self, blocks: int) -> None:
        """Makes room for this number of blocks. Blocks of no worker go first, where a short sweep hits them."""
        most = max(self.max_blocks - blocks, 0)
        while len(self._holders) > most:
            self._sweep(SWEEP // 16)
            if len(self._holders) > most:
                self._evict()

    def _evict(self) -> None:
        """Evicts the least recently used block."""
        for _ in range(CHANCES):
            run = self._run_of.get(next(iter(self._holders)))
            if run is None or not run.used:
                break
            run.used = False
            self._touch(run.hashes)
        block, holders = next(iter(self._holders.items()))
        for worker in self._workers.values():
            if worker.bit & holders:
                worker.blocks -= 1
        self.evicted += bool(holders & ~self._retired)
        self._clear(block, holders)

    def _touch(self, hashes: list[bytes]) -> None:
        """Marks blocks as used now. Later blocks are evicted first: a prefix is worthless without its beginning."""
        holders = self._holders
        for block in reversed(hashes):
            if block in holders:
                holders.move_to_end(block)

    def _sweep(self, blocks: int = SWEEP) -> None:
        """Removes retired bits from the next few hashes."""
        if not self._unswept:
            self._sweeping = self._retired
            # In any order: the order of use takes a hundred times as long to walk.
            self._unswept = list(dict.keys(self._holders)) if self._retired else []
        for block in self._unswept[-blocks:]:
            if bits := self._holders.get(block, 0) & self._sweeping:
                self._clear(block, bits)
        del self._unswept[-blocks:]
        if not self._unswept:
            self._retired &= ~self._sweeping

    def _unsettle(self, block: bytes, bits: int) -> None:
        """Invalidates the cached run of `block` for these workers."""
        run = self._run_of.get(block)
        if run is None or not run.known & bits:
            return
        run.remove(bits)
        if not run.whole:
            del self._runs[run.hashes[-1]]
            for other in run.hashes:
                del self._run_of[other]

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _holding(self, hashes: list[bytes], workers: int) -> list[int]:
        """Returns, at index n, the workers that have each of the first n blocks."""
        return list(accumulate(map(self._holders.get, hashes, repeat(0)), and_, initial=workers))

    def _inspect(self, run: PrefixRun, workers: int) -> PrefixRun:
        """Adds `workers` to `run`. The run is cached if some have all of it and no other run has its blocks."""
        run.add(workers, self._holding(run.hashes, workers & ~run.known))
        # Prompts that diverge within a run share its first block; the first run that is looked up is cached.
        if run.whole and len(run.hashes) == RUN and run.hashes[0] not in self._run_of:
            self._runs[run.hashes[-1]] = run
            self._run_of.update(dict.fromkeys(run.hashes, run))
        elif run.hashes[-1] not in self._runs:
            self._touch(run.hashes)
        return run

    def _note(self, workers: int, blocks: int, prefixes: dict[str, int]) -> None:
        """Sets the prefixes of `workers` to `blocks`."""
        while workers and blocks:
            lowest = workers & -workers
            prefixes[self._names[lowest]] = blocks
            workers ^= lowest
