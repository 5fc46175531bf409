"""Decides whether a waiting request may start: slots, blocks, room to grow, and prefixes that others are computing."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from legato_engine.kvcache.prefix_cache import CachedPrefix
from legato_engine.scheduler.queueing.growth_forecast import NONE, Growth, GrowthForecast
from legato_engine.scheduler.queueing.output_lengths import OutputLengthEstimator
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.requests.request_registry import RequestRegistry

REUSED = 0.1  # share of the latest sequences that use cached blocks again, above which these are kept
REUSE_WINDOW = 64  # the latest sequences, about


class Verdict(Enum):
    STARTED = "started"
    SKIPPED = "skipped"  # it cannot start now, but later requests may
    FULL = "full"  # it lacks slots or blocks, and later requests must not take them


@dataclass(slots=True)
class _Occupied:
    """Slots of running sequences and of incoming transfers with blocks, and the further need of all these. None: not
    counted yet; `grows` is False if no sequence will need more."""

    slots: int | None = None
    growth: GrowthForecast | None = None
    grows: bool = False


class AdmissionControl:
    """Allocates blocks for waiting requests.

    A request gets the blocks for all of its known tokens when it starts, so it can finish its prompt without preempting
    others.
    """

    def __init__(
        self, limits: SchedulerLimits, registry: RequestRegistry, tables: BlockTables, lengths: OutputLengthEstimator
    ) -> None:
        self._limits = limits
        self._sizes = limits.sizes
        self._registry = registry
        self._tables = tables
        self._lengths = lengths
        self.reserved: set[Request] = set()  # requests of incoming transfers that have blocks
        self._occupied: _Occupied | None = None  # of the current pass
        self._reuse = 0.0  # share of the latest sequences that use cached blocks again, or could have before eviction

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Counts running sequences once for all requests that start in this context: one count for each would take
        quadratic time. No other sequence may start, grow or end meanwhile."""
        self._occupied = _Occupied()
        try:
            yield
        finally:
            self._occupied = None

    def free_slots(self) -> int:
        """Number of further sequences that may run."""
        occupied = self._occupied or _Occupied()
        if occupied.slots is None:
            occupied.slots = self._registry.used_slots() + sum(len(request.choices) for request in self.reserved)
        return self._limits.max_running - occupied.slots

    def parkable(self) -> int:
        """Number of further prefills that may be computed without a grant."""
        return self._limits.max_parked - self._registry.ungranted()

    def fits(self, missing: int, growth: Growth = NONE) -> bool:
        """True if `missing` blocks are available, and room for `growth` at any time of the expected growth of others.

        If nothing else runs, a sequence may fill the worker, so the first one can always start. That others end first
        does not count where maximum output is reserved, nor while sequences use cached blocks again: keeping these
        saves more time than another sequence in the batch.
        """
        available = self._tables.pool.available
        if missing > available:
            return False
        occupied = self._occupied or _Occupied()
        if occupied.growth is None:
            growing = self._growing()
            occupied.growth, occupied.grows = self._forecast(growing), bool(growing or self.reserved)
        if not occupied.grows or missing + growth.blocks + occupied.growth.total <= available:
            return True
        return not self._sums_growth and missing + occupied.growth.peak(growth) <= available

    def reserve(self, request: Request) -> None:
        """Reserves a slot and growth for the sequence of an incoming transfer, which has blocks now."""
        self.reserved.add(request)
        self._occupy(request, self._reserved_growth(request))

    def unreserve(self, request: Request) -> None:
        """Ends the reservation of `request`, if it has one."""
        self.reserved.discard(request)
        self._recount()

    def make_room(self, request: Request, matched: CachedPrefix, blocks: int, growth: Growth) -> bool:
        """True if there are slots for `request`, and `blocks` of the first group, of which `matched` are cached.

        Preempts paused sequences if that frees enough.
        """

        def has_room() -> bool:
            return len(request.choices) <= self.free_slots() and self.fits(
                self._tables.missing(request, matched, blocks), growth
            )

        if has_room():
            self._count_reuse(request, matched)
            return True
        victims = self._paused()
        slots = self.free_slots() + sum(len(victim.choices) for victim in victims)
        missing = self._tables.missing(request, matched, blocks) - self._tables.count_exclusive(victims)
        if len(request.choices) > slots or not self.fits(missing, growth):
            return False
        while victims and not has_room():
            self._registry.preempt(victims.pop())
            self._recount()
        if not has_room():
            return False
        self._count_reuse(request, matched)
        return True

    def paused_blocks(self) -> int:
        """Blocks that preempting all paused sequences would free."""
        return self._tables.count_exclusive(self._paused())

    def expected_growth(self, pending: Iterable[Request]) -> tuple[int, int]:
        """The most further blocks that sequences decoding here are expected to need at one time, beyond those they have
        or start with, and how many more with another sequence like them.

        Waiting sequences and the ones in `pending` transfers are included, as if they started now.
        """
        growing, arriving = self._growing(), tuple(pending)
        waiting = [request for request in self._registry.queue if request.room is None]
        forecast = self._forecast(growing)
        for request in arriving:
            forecast.add(self._reserved_growth(request))
        for request in waiting:
            forecast.add(self.growth(request, self.started_blocks(request)))
        usual = forecast.usual(sum([each.outputs for each in (*growing, *self.reserved, *arriving, *waiting)]))
        if self._sums_growth:
            return forecast.total, usual.blocks
        peak = forecast.peak()
        return peak, forecast.peak(usual) - peak

    def first_blocks(self, request: Request) -> int:
        """Blocks of the first group that a waiting request gets when it starts, including cached ones."""
        return self._limits.blocks_for(self._first_tokens(request))

    def started_blocks(self, request: Request) -> int:
        """Blocks of all groups that a waiting request has when its prompt is computed."""
        return self._sizes.decoding(self._first_tokens(request))

    def growth(self, request: Request, held: int) -> Growth:
        """The need that all choices of `request` are expected to have beyond the `held` blocks."""
        limits, known = self._limits, len(request.tokens)
        steps, ends = self._expected(request)
        longest = min(known + steps, limits.max_length)
        branches = len(request.choices)
        shared = known // limits.block_size if branches > 1 else 0  # full blocks of the prompt serve all choices
        needed = self._sizes.decoding(longest - 1) - shared  # KV of the last token is never computed
        blocks = max(0, branches * needed - (held - shared))
        own = self._sizes.decoding(known) - self._sizes.decoding(request.prompt_len) if branches == 1 else 0
        return Growth(max(1, longest - known), blocks, own if ends else -blocks)

    def start(self, request: Request) -> Verdict:
        """Starts a waiting request that is not paused, if it fits."""
        known = len(request.tokens)
        matched = self._tables.match(request, (known - 1) // self._limits.block_size)
        if self._tables.is_being_computed(request, matched.count) or self._tables.is_arriving(request, matched):
            return Verdict.SKIPPED
        blocks = self.first_blocks(request)
        started = self.started_blocks(request)
        growth = self.growth(request, started) if request.room is None else NONE
        if not self.make_room(request, matched, blocks, growth):
            return Verdict.FULL
        self._tables.open(request, matched, blocks)
        request.reserved_blocks = started + growth.blocks
        if not request.farthest:
            request.cached_tokens = min(request.computed, request.prompt_len)
        self._tables.announce(request)
        self._registry.run(request)
        self._occupy(request, self.growth(request, request.held_blocks) if self._grows(request) else None)
        return Verdict.STARTED

    def _occupy(self, request: Request, growth: Growth | None) -> None:
        """Counts a sequence that has started in this pass; `growth` is None if it needs no further blocks here."""
        if (occupied := self._occupied) is None:
            return
        if occupied.slots is not None:
            occupied.slots += len(request.choices)
        if occupied.growth is not None and growth is not None:
            occupied.growth.add(growth)
            occupied.grows = True

    def _count_reuse(self, request: Request, matched: CachedPrefix) -> None:
        """Counts whether a sequence that starts uses cached blocks that nobody uses, or has lost some to eviction.

        A preempted sequence finds its own blocks.
        """
        if request.preempted:
            return
        pool, count = self._tables.pool, matched.count
        lost = count < len(request.hashes) and pool.cache.was_evicted(request.hashes[count])
        again = lost or count > len(matched.blocks) or any(not pool.references(block) for block in matched.blocks)
        self._reuse += (again - self._reuse) / REUSE_WINDOW

    @property
    def _sums_growth(self) -> bool:
        """True if room is needed for the sum of all growth, whoever ends first."""
        return self._limits.reserve_maximum or self._reuse > REUSED

    def _recount(self) -> None:
        """Discards the counts of this pass, because a sequence no longer has slots or blocks."""
        if self._occupied is not None:
            self._occupied = _Occupied()

    def _first_tokens(self, request: Request) -> int:
        known = len(request.tokens)
        return known if request.room is not None else known + 1

    def _paused(self) -> list[Request]:
        """Paused sequences that may be preempted, in order of precedence; no transfer or step uses their blocks now.

        If maximum output is reserved, they are preempted only while no other sequence runs, which would free blocks.
        """
        running = self._registry.running
        if self._limits.reserve_maximum and any(request.schedulable for request in running):
            return []
        return [r for r in running if r.paused and not (r.sending or self._tables.in_flight(r))]

    def _forecast(self, growing: list[Request]) -> GrowthForecast:
        """Expected growth of `growing` and of incoming transfers with blocks."""
        arriving = [self._reserved_growth(request) for request in self.reserved]
        return GrowthForecast([self.growth(request, request.held_blocks) for request in growing] + arriving)

    def _reserved_growth(self, request: Request) -> Growth:
        """Expected growth of a sequence whose transfer has blocks, or waits for them."""
        return self.growth(request, self._sizes.decoding(self._limits.reserved_tokens(request)))

    def _growing(self) -> list[Request]:
        """Running sequences that will need more blocks."""
        return [request for request in self._registry.running if self._grows(request)]

    def _grows(self, request: Request) -> bool:
        """True if a running sequence will need more blocks here; a paused one only if maximum output is reserved."""
        return request.room is None and (self._limits.reserve_maximum or request.schedulable)

    def _expected(self, request: Request) -> tuple[int, bool]:
        """Output tokens that `request` is expected to produce from now on, within its limit, and whether it is expected
        to end then."""
        outputs, most = len(request.tokens) - request.prompt_len, request.params.max_tokens
        if self._limits.reserve_maximum:
            return most - outputs, True
        usual = self._lengths.usual(request)
        if usual is None or usual <= outputs:
            growth = min(self._limits.growth_tokens, most - outputs)
            return growth, growth == most - outputs
        return min(max(usual, request.params.min_tokens), most) - outputs, True
