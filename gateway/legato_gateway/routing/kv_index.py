"""Which worker holds which prefix: an index of block hashes, fed by the workers' KV events. Pure.

Per worker it is exactly what the worker held after event `number`, the highest one seen of its epoch, or, after any
doubt (a gap, a number that goes back, another epoch, a torn snapshot), nothing at all until a new snapshot is complete.
It never holds what the worker had at some earlier time.

A worker is one bit of an integer per hash. `match` walks a prompt's hashes in runs of `RUN` blocks: since a hash names
its whole prefix, the hash at the end of a run names all blocks of the run, and the index remembers by it how far into
the run each worker's prefix reaches. Any event about a block of the run makes it forget that of the event's worker at
once, so a match never claims more or less than the unbroken prefix that is there; a worker is not trusted to evict
leaves first.

A full index forgets the blocks that were matched or stored least recently. A worker that is forgotten for a block
counts as not holding it, which only costs time. Order of use is kept by block, where a run in use stands for its
blocks: it is spared once when its first block's turn comes (the CLOCK algorithm), so that a match has no more to do
than to mark its runs.

A worker that holds nothing any more gets another bit: the old one means nobody, and is swept out of the hashes a few
at a time, since a look at all of them would hold up every stream of the gateway.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import accumulate, pairwise, repeat
from operator import and_

from legato_protocol.block_hash import HASH_BYTES, split
from legato_protocol.kv_events import KVEvent, Removed, Snapshot, Stored

MAX_BLOCKS = 1 << 20
RUN = 32
SWEEP = 1024  # hashes looked at per event
PIECE = 1024  # hashes of a snapshot that are taken in without a pause: half a millisecond
CHANCES = 4  # runs in use that are spared before a block goes all the same


@dataclass(slots=True)
class _Run:
    """Neighbouring blocks of one prefix, `RUN` of them if it is to be remembered, and who holds how many of them."""

    hashes: list[bytes]
    known: int = 0  # the workers looked at: each is in `whole`, or in one of `parts`
    whole: int = 0  # those that hold every block
    parts: dict[int, int] = field(default_factory=dict)  # blocks held without a hole → workers that hold so many
    used: bool = False  # since its blocks' turn to be forgotten came last


@dataclass(slots=True)
class _Worker:
    name: str
    bit: int
    epoch: str
    number: int = -1  # of the last event seen, applied or not
    blocks: int = 0  # hashes with its bit
    pages: int = 0  # of the snapshot being read; they count when it is complete
    page_number: int = -1
    last_page: bool = False
    page: bytes = b""  # hashes of the page that is being taken in
    position: int = 0  # in it, of what is left


class KVIndex:
    """The index of one gateway. `max_blocks` bounds its memory (about 300 bytes each). It is never larger than the
    caches of the fleet together."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self._holders: OrderedDict[bytes, int] = OrderedDict()  # next to be forgotten first
        self._runs: dict[bytes, _Run] = {}  # by the last hash
        self._run_of: dict[bytes, _Run] = {}  # by every hash
        self._workers: dict[str, _Worker] = {}
        self._names: dict[int, str] = {}  # of workers, by bit
        self._valid = 0  # bits of workers whose snapshot is complete and was followed without a gap
        self.evicted = 0  # blocks forgotten for want of memory, so far
        self.dropped = 0  # blocks of snapshots that were not taken in for want of memory, so far
        self._retired = 0  # bits that mean nobody, and are in some hashes still
        self._sweeping = 0  # those of them that `_unswept` is looked through for
        self._unswept: list[bytes] = []

    # ── feeding it ──────────────────────────────────────────────────────────────────────────────────────────────────

    def expect(self, worker: str, epoch: str) -> None:
        """A connection to `worker` begins, or it said `Hello`: of this epoch, a snapshot is to come.

        The same epoch over a new connection starts over as well: events were lost between the two.
        """
        known = self._workers.get(worker)
        if known is None:
            self._workers[worker] = _Worker(worker, self._take_bit(worker), epoch)
            return
        seen = known.number if known.epoch == epoch else -1
        self._doubt(known)
        self._workers[worker] = _Worker(worker, known.bit, epoch, seen)

    def forget(self, worker: str) -> None:
        """`worker` is gone."""
        if (known := self._workers.pop(worker, None)) is not None:
            self._doubt(known)
            del self._names[known.bit]
            self._sweep()

    def apply(self, worker: str, event: KVEvent) -> bool:
        """Takes in an event. True: it shows that events were lost; ask the worker for a snapshot now.

        Of a snapshot's page it may take in the beginning alone: `read_on` does the rest.
        """
        known = self._workers.get(worker)
        if known is None:
            return False
        lost = self._follow(known, event)
        self._sweep()
        return lost

    def read_on(self, worker: str) -> bool:
        """Takes in more of the worker's last event. False: nothing of it was left. Else call it again after a pause."""
        known = self._workers.get(worker)
        if known is None or not known.page:
            return False
        self._read(known)
        return True

    def _follow(self, known: _Worker, event: KVEvent) -> bool:
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

    # ── asking it ───────────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, hashes: list[bytes]) -> dict[str, int]:
        """For each worker that holds the first block, how many leading blocks it holds without a hole.

        `hashes` are those of one prompt, as `block_hash.chain` makes them: each names all before it.
        """
        alive = self._holders.get(hashes[0], 0) & self._valid if hashes else 0
        found: dict[str, int] = {}
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
                run = self._look(run or _Run(hashes[start : start + RUN]), alive)
            run.used = True
            if alive & ~run.whole:
                for blocks, workers in run.parts.items():
                    self._note(alive & workers, start + blocks, found)
                alive &= run.whole
        self._note(alive, len(hashes), found)
        return found

    @property
    def blocks(self) -> int:
        """Distinct hashes kept, those of nobody that were not swept out yet included."""
        return len(self._holders)

    def held(self, worker: str) -> int:
        """How many hashes `worker` is known to hold."""
        known = self._workers.get(worker)
        return known.blocks if known and known.bit & self._valid else 0

    def check_integrity(self) -> None:
        """Raises AssertionError unless the index agrees with itself."""
        assert len(self._holders) <= self.max_blocks, "more blocks than allowed"
        assert all(self._holders.values()), "a hash without a holder is kept"
        known = sum(w.bit for w in self._workers.values() if w.pages or w.bit & self._valid)
        assert not known & self._retired, "a worker has a bit that means nobody"
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

    def _doubt(self, worker: _Worker) -> bool:
        """The worker's events cannot be trusted. True if that is news and a snapshot must be asked for."""
        if not (worker.bit & self._valid or worker.pages):
            return False
        self._valid &= ~worker.bit
        worker.pages = 0
        self._erase(worker)
        return True

    def _page(self, worker: _Worker, page: Snapshot) -> bool:
        if page.number < worker.number:  # of an earlier time: events after it were seen, and perhaps dropped
            self._doubt(worker)
            return True
        if page.page == 0:
            self._doubt(worker)
        elif page.page != worker.pages or page.number != worker.page_number:
            worker.number = page.number
            self._doubt(worker)
            return True
        worker.pages = page.page + 1
        worker.page_number = worker.number = page.number
        worker.page, worker.position, worker.last_page = page.hashes, 0, page.last
        self._read(worker)
        return False

    def _read(self, worker: _Worker) -> None:
        """Takes in the next hashes of the page."""
        start, worker.position = worker.position, worker.position + PIECE * HASH_BYTES
        self._add(worker, split(worker.page[start : worker.position]))
        if worker.position < len(worker.page):
            return
        worker.page = b""
        if worker.last_page:
            self._valid |= worker.bit
            worker.pages = 0

    def _change(self, worker: _Worker, event: Stored | Removed) -> None:
        if isinstance(event, Stored):
            self._add(worker, split(event.hashes))
        else:
            for block in split(event.hashes):
                self._remove(worker, block)

    # ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, worker: _Worker, hashes: list[bytes]) -> None:
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

    def _share(self, worker: _Worker) -> int:
        """How many blocks it may have that others' are to be forgotten for. What it stores now is of use now; of a
        snapshot nobody knows when it was."""
        return self.max_blocks // len(self._workers) - worker.blocks if worker.pages else self.max_blocks

    def _remove(self, worker: _Worker, block: bytes) -> None:
        if self._holders.get(block, 0) & worker.bit:
            worker.blocks -= 1
            self._clear(block, worker.bit)

    def _clear(self, block: bytes, bits: int) -> None:
        """`block` is held by none of `bits`."""
        if left := self._holders[block] & ~bits:
            self._holders[block] = left
        else:
            del self._holders[block]
        self._unsettle(block, bits)

    def _erase(self, worker: _Worker) -> None:
        """The worker holds nothing: what has its bit is left to be swept."""
        if not worker.blocks:
            return
        old, worker.blocks = worker.bit, 0
        self._retired |= old
        worker.bit = self._take_bit(worker.name)
        del self._names[old]
        if self._valid & old:
            self._valid ^= old | worker.bit

    def _take_bit(self, worker: str) -> int:
        used = sum(self._names) | self._retired
        bit = ~used & (used + 1)
        self._names[bit] = worker
        return bit

    def _make_room(self, blocks: int) -> None:
        """Room for so many more. What is held by nobody goes first, as far as it is found soon."""
        most = max(self.max_blocks - blocks, 0)
        while len(self._holders) > most:
            self._sweep(SWEEP // 16)
            if len(self._holders) > most:
                self._evict()

    def _evict(self) -> None:
        """Forgets the block that was of use least recently."""
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
        """These are of use now. Their end is to be forgotten first: without its beginning a prefix is worth nothing."""
        holders = self._holders
        for block in reversed(hashes):
            if block in holders:
                holders.move_to_end(block)

    def _sweep(self, blocks: int = SWEEP) -> None:
        """Takes retired bits out of the next few hashes."""
        if not self._unswept:
            self._sweeping = self._retired
            # In no order: that of use takes a hundred times as long to walk.
            self._unswept = list(dict.keys(self._holders)) if self._retired else []
        for block in self._unswept[-blocks:]:
            if bits := self._holders.get(block, 0) & self._sweeping:
                self._clear(block, bits)
        del self._unswept[-blocks:]
        if not self._unswept:
            self._retired &= ~self._sweeping

    def _unsettle(self, block: bytes, bits: int) -> None:
        """Workers hold `block` now, or do so no more: what was found of them in this run is moot."""
        run = self._run_of.get(block)
        if run is None or not run.known & bits:
            return
        run.known &= ~bits
        run.whole &= ~bits
        run.parts = {blocks: left for blocks, workers in run.parts.items() if (left := workers & ~bits)}
        if not run.whole:
            del self._runs[run.hashes[-1]]
            for other in run.hashes:
                del self._run_of[other]

    # ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _holding(self, hashes: list[bytes], workers: int) -> list[int]:
        """At n: those of `workers` that hold each of the first n blocks."""
        return list(accumulate(map(self._holders.get, hashes, repeat(0)), and_, initial=workers))

    def _look(self, run: _Run, workers: int) -> _Run:
        """`run`, with what `workers` hold of it; remembered if some hold all of it, and no other run has its blocks."""
        holding = self._holding(run.hashes, workers & ~run.known)
        run.known |= workers
        run.whole |= holding[-1]
        if holding[-1] != holding[0]:
            for blocks, (before, after) in enumerate(pairwise(holding)):
                if before != after:
                    run.parts[blocks] = run.parts.get(blocks, 0) | (before ^ after)
        # Prompts that part within a run share its first block; the first of them to be asked for is remembered.
        if run.whole and len(run.hashes) == RUN and run.hashes[0] not in self._run_of:
            self._runs[run.hashes[-1]] = run
            self._run_of.update(dict.fromkeys(run.hashes, run))
        elif run.hashes[-1] not in self._runs:
            self._touch(run.hashes)
        return run

    def _note(self, workers: int, blocks: int, found: dict[str, int]) -> None:
        """The prefixes of `workers` are `blocks` long."""
        while workers and blocks:
            lowest = workers & -workers
            found[self._names[lowest]] = blocks
            workers ^= lowest
