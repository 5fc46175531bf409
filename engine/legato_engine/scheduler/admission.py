"""Who may start: slots, blocks, room to grow, and prefixes that somebody else is computing right now."""

from collections.abc import Iterable
from enum import Enum

from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.output_lengths import OutputLengths
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.request_registry import RequestRegistry


class Verdict(Enum):
    STARTED = "started"
    SKIPPED = "skipped"  # it cannot start now, those behind it may
    FULL = "full"  # nothing behind it may overtake: it needs what they would take


class AdmissionControl:
    """Gives waiting requests their blocks. All blocks of the known tokens are given at once, so that what has started
    can finish its prompt without taking from others."""

    def __init__(
        self, limits: SchedulerLimits, registry: RequestRegistry, tables: BlockTables, lengths: OutputLengths
    ) -> None:
        self._limits = limits
        self._registry = registry
        self._tables = tables
        self._lengths = lengths
        self.reserved: set[Request] = set()  # what incoming transfers with blocks will become

    def slots(self) -> int:
        """How many more sequences may run."""
        return (
            self._limits.max_running - self._registry.slots() - sum(len(request.choices) for request in self.reserved)
        )

    def parkable(self) -> int:
        """How many more prefills may be computed without a grant."""
        return self._limits.max_parked - self._registry.ungranted()

    def fits(self, missing: int, growth: int) -> bool:
        """Whether `missing` blocks can be taken, and then `growth` more beside what others still ask for. Alone, a
        sequence may fill the worker, so that the next one can always start."""
        growing = self._growing()
        if growing or self.reserved:
            missing += growth + self._growth(growing)
        return missing <= self._tables.pool.available

    def make_room(self, request: Request, matched: list[int], blocks: int, growth: int) -> bool:
        """Whether there are slots and blocks for `request`, of which `matched` are stored: those of paused sequences,
        which are preempted for it, count where they are enough."""

        def has_room() -> bool:
            return len(request.choices) <= self.slots() and self.fits(self._tables.missing(matched, blocks), growth)

        if has_room():
            return True
        victims = self._paused()
        slots = self.slots() + sum(len(victim.choices) for victim in victims)
        missing = self._tables.missing(matched, blocks) - self._tables.owned_alone(victims)
        if len(request.choices) > slots or not self.fits(missing, growth):
            return False
        while victims and not has_room():
            self._registry.preempt(victims.pop())
        return has_room()

    def paused_blocks(self) -> int:
        """Blocks that paused sequences hold and would give to others."""
        return self._tables.owned_alone(self._paused())

    def expected_growth(self, pending: Iterable[Request]) -> int:
        """Blocks that all sequences which decode here will still ask for, also the waiting ones and those of `pending`
        transfers: beyond the blocks that they have or begin with."""
        waiting = [self.growth(r, self.first_blocks(r)) for r in self._registry.queue if r.room is None]
        return self._growth(self._growing(), pending) + sum(waiting)

    def first_blocks(self, request: Request) -> int:
        """Blocks that a waiting request gets when it starts, those from the cache included."""
        known = len(request.tokens)
        return self._limits.blocks_for(known if request.room is not None else known + 1)

    def growth(self, request: Request, held: int) -> int:
        """Blocks that `request` will still ask for when it holds `held`, those of all its choices together."""
        limits, known = self._limits, len(request.tokens)
        longest = min(known + self._expected(request), limits.max_length)
        branches = len(request.choices)
        shared = known // limits.block_size if branches > 1 else 0  # full blocks of the prompt serve all choices
        needed = limits.blocks_for(longest - 1) - shared  # nothing follows the last token, so its KV is not computed
        return max(0, branches * needed - (held - shared))

    def start(self, request: Request) -> Verdict:
        """Give `request`, which waits and is not paused, its blocks."""
        known = len(request.tokens)
        matched = self._tables.match(request, (known - 1) // self._limits.block_size)
        if self._tables.awaited(request, len(matched)):
            return Verdict.SKIPPED
        blocks = self.first_blocks(request)
        growth = self.growth(request, blocks) if request.room is None else 0
        if not self.make_room(request, matched, blocks, growth):
            return Verdict.FULL
        self._tables.open(request, matched, blocks)
        request.reserved_blocks = blocks + growth
        if not request.farthest:
            request.cached_tokens = min(request.computed, request.prompt_len)
        self._tables.announce(request)
        self._registry.run(request)
        return Verdict.STARTED

    def _paused(self) -> list[Request]:
        """Paused sequences that may give way, in order of precedence: nobody reads or writes their blocks now. Where
        their maximum is reserved, they do so only if nothing else runs that will give its own back."""
        running = self._registry.running
        if self._limits.reserve_maximum and any(request.schedulable for request in running):
            return []
        return [r for r in running if r.paused and not (r.sending or self._tables.in_flight(r))]

    def _growth(self, growing: list[Request], pending: Iterable[Request] = ()) -> int:
        """Of these, of incoming transfers with blocks and of `pending` ones."""
        limits, transfers = self._limits, (*self.reserved, *pending)
        reserved = sum([self.growth(request, limits.blocks_for(limits.reserved(request))) for request in transfers])
        return reserved + sum([self.growth(request, len(request.blocks)) for request in growing])

    def _growing(self) -> list[Request]:
        """What runs and makes tokens; a paused one, whose blocks are the first to be taken, only if all is reserved."""
        running = self._registry.running
        if self._limits.reserve_maximum:
            return [request for request in running if request.room is None]
        return [request for request in running if request.schedulable and request.room is None]

    def _expected(self, request: Request) -> int:
        """Output tokens that `request` will still make: as many as usual, but no more than it may."""
        outputs, most = request.outputs, request.params.max_tokens
        if self._limits.reserve_maximum:
            return most - outputs
        usual = self._lengths.usual(request)
        if usual is None or usual <= outputs:
            return min(self._limits.growth_tokens, most - outputs)
        return min(usual, most) - outputs
