"""Which worker holds which prefix: an index of block hashes, fed by the workers' KV events. Pure.

Per worker it is exactly what the worker held after event `number`, the highest one seen of its epoch, or, after any
doubt (a gap, a number that goes back, another epoch, a torn snapshot), nothing at all until a new snapshot is complete.
It never holds what the worker had at some earlier time.

A worker is one bit of an integer per hash. `match` walks a prompt's hashes in runs of `RUN` blocks: since a hash names
its whole prefix, the hash at the end of a run names all blocks of the run, and the index remembers by it which workers
hold *every* block of the run. A removal within a run takes the worker's bit back at once, so a match never claims more
than an unbroken prefix that is there; a worker is not trusted to evict leaves first.
"""

from dataclasses import dataclass

from legato_protocol.block_hash import split
from legato_protocol.kv_events import Cleared, KVEvent, Removed, Snapshot, Stored

RUN = 32


@dataclass(slots=True)
class _Run:
    """`RUN` neighbouring blocks of one prefix, and the workers known to hold all of them."""

    hashes: tuple[bytes, ...]
    workers: int


@dataclass(slots=True)
class _Worker:
    bit: int
    epoch: str
    number: int = -1  # of the last event seen, applied or not
    pages: int = 0  # of the snapshot being read; they count when it is complete
    page_number: int = -1


class KVIndex:
    """The index of one gateway. `max_blocks` bounds its memory (about 250 bytes each); what is beyond is not held."""

    def __init__(self, max_blocks: int = 262_144) -> None:
        self._max_blocks = max_blocks
        self._holders: dict[bytes, int] = {}
        self._runs: dict[bytes, _Run] = {}  # by the last hash
        self._run_of: dict[bytes, _Run] = {}  # by every hash
        self._workers: dict[str, _Worker] = {}
        self._names: dict[int, str] = {}  # of workers, by bit
        self._valid = 0  # bits of workers whose snapshot is complete and was followed without a gap
        self._dropped = 0

    # ── feeding it ──────────────────────────────────────────────────────────────────────────────────────────────────

    def expect(self, worker: str, epoch: str) -> None:
        """A connection to `worker` begins, or it said `Hello`: of this epoch, a snapshot is to come.

        The same epoch over a new connection starts over as well: events were lost between the two.
        """
        known = self._workers.get(worker)
        if known is None:
            used = sum(self._names)
            known = _Worker(~used & (used + 1), epoch)
            self._names[known.bit] = worker
            self._workers[worker] = known
            return
        seen = known.number if known.epoch == epoch else -1
        self._doubt(known)
        self._workers[worker] = _Worker(known.bit, epoch, seen)

    def forget(self, worker: str) -> None:
        """`worker` is gone."""
        if (known := self._workers.pop(worker, None)) is not None:
            self._doubt(known)
            del self._names[known.bit]

    def apply(self, worker: str, event: KVEvent) -> bool:
        """Takes in an event. True: it shows that events were lost; ask the worker for a snapshot now."""
        known = self._workers.get(worker)
        if known is None:
            return False
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

    def needs_snapshot(self, worker: str) -> bool:
        """The worker counts as holding nothing, because what it holds is not known."""
        known = self._workers.get(worker)
        return known is not None and not known.bit & self._valid

    # ── asking it ───────────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, hashes: list[bytes]) -> dict[str, int]:
        """For each worker that holds the first block, how many leading blocks it holds without a hole.

        `hashes` are those of one prompt, as `block_hash.chain` makes them: each names all before it.
        """
        alive = self._holders.get(hashes[0], 0) & self._valid if hashes else 0
        found: dict[str, int] = {}
        if not alive:
            return found
        runs, end = self._runs, len(hashes)
        for last in range(RUN - 1, end, RUN):
            run = runs.get(hashes[last])
            if run is None or alive & ~run.workers:
                alive = self._walk(hashes, last + 1 - RUN, alive, found)
            if not alive:
                return found
        if end % RUN:
            alive = self._walk(hashes, end - end % RUN, alive, found)
        self._note(alive, end, found)
        return found

    @property
    def blocks(self) -> int:
        """Distinct hashes held."""
        return len(self._holders)

    @property
    def dropped(self) -> int:
        """Hashes that were not taken in for want of memory, so far."""
        return self._dropped

    def held_by(self, worker: str) -> set[bytes]:
        """All hashes that `worker` is known to hold."""
        known = self._workers.get(worker)
        bit = known.bit & self._valid if known else 0
        return {block for block, holders in self._holders.items() if holders & bit}

    def check_integrity(self) -> None:
        """Raises AssertionError unless the index agrees with itself."""
        assert len(self._holders) <= self._max_blocks, "more blocks than allowed"
        assert all(self._holders.values()), "a hash without a holder is kept"
        known = sum(w.bit for w in self._workers.values() if w.pages or w.bit & self._valid)
        assert not any(holders & ~known for holders in self._holders.values()), "a worker in doubt holds something"
        for last, run in self._runs.items():
            assert run.workers, "a run without a holder is kept"
            assert not run.workers & ~self._valid, "a run claims a worker in doubt"
            assert last == run.hashes[-1], "a run is filed wrongly"
            for block in run.hashes:
                assert self._run_of[block] is run, "a block is filed under another run"
                assert not run.workers & ~self._holders.get(block, 0), "a run claims a block that is not held"
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
        self._add(worker, split(page.hashes))
        if page.last:
            self._valid |= worker.bit
            worker.pages = 0
        return False

    def _change(self, worker: _Worker, event: Stored | Removed | Cleared) -> None:
        if isinstance(event, Stored):
            self._add(worker, split(event.hashes))
        elif isinstance(event, Removed):
            for block in split(event.hashes):
                self._remove(worker, block)
        else:
            self._erase(worker)

    # ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _add(self, worker: _Worker, hashes: list[bytes]) -> None:
        holders = self._holders
        for block in hashes:
            known = holders.get(block, 0)
            if known or len(holders) < self._max_blocks:
                holders[block] = known | worker.bit
            else:
                self._dropped += 1

    def _remove(self, worker: _Worker, block: bytes) -> None:
        holders = self._holders.get(block, 0)
        if not holders & worker.bit:
            return
        if holders == worker.bit:
            del self._holders[block]
        else:
            self._holders[block] = holders & ~worker.bit
        run = self._run_of.get(block)
        if run is not None and run.workers & worker.bit:
            self._shrink(run, worker.bit)

    def _erase(self, worker: _Worker) -> None:
        for block in [block for block, holders in self._holders.items() if holders & worker.bit]:
            self._remove(worker, block)

    def _shrink(self, run: _Run, bit: int) -> None:
        run.workers &= ~bit
        if not run.workers:
            del self._runs[run.hashes[-1]]
            for block in run.hashes:
                del self._run_of[block]

    def _walk(self, hashes: list[bytes], start: int, alive: int, found: dict[str, int]) -> int:
        """Workers of `alive` that hold all of the run at `start`; the others' prefixes end in it: they are `found`."""
        run = hashes[start : start + RUN]
        holders = self._holders
        for offset, block in enumerate(run):
            here = holders.get(block, 0)
            if alive & ~here:
                self._note(alive & ~here, start + offset, found)
                alive &= here
                if not alive:
                    return 0
        if len(run) == RUN:
            self._remember(run, alive)
        return alive

    def _note(self, workers: int, blocks: int, found: dict[str, int]) -> None:
        """The prefixes of `workers` are `blocks` long."""
        while workers and blocks:
            lowest = workers & -workers
            found[self._names[lowest]] = blocks
            workers ^= lowest

    def _remember(self, hashes: list[bytes], workers: int) -> None:
        """Prompts that part within a run share its first block; the first of them to be asked for is remembered."""
        run = self._runs.get(hashes[-1])
        if run is not None:
            run.workers |= workers
        elif hashes[0] not in self._run_of:
            run = self._runs[hashes[-1]] = _Run(tuple(hashes), workers)
            self._run_of.update(dict.fromkeys(hashes, run))
