"""Who may start: slots, blocks, room to grow, and prefixes that somebody else is computing right now."""

from enum import Enum

from legato_engine.request import Request
from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.request_registry import RequestRegistry


class Verdict(Enum):
    STARTED = "started"
    SKIPPED = "skipped"  # it cannot start now, those behind it may
    FULL = "full"  # nothing behind it may overtake: it needs what they would take


class AdmissionControl:
    """Gives waiting requests their blocks. All blocks of the known tokens are given at once, so that what has started
    can finish its prompt without taking from others."""

    def __init__(self, limits: SchedulerLimits, registry: RequestRegistry, tables: BlockTables) -> None:
        self._limits = limits
        self._registry = registry
        self._tables = tables
        self.reserved = 0  # sequences that incoming transfers with blocks will become

    def slots(self) -> int:
        """How many more sequences may run."""
        return self._limits.max_running - self._registry.slots() - self.reserved

    def parkable(self) -> int:
        """How many more prefills may be computed without a grant."""
        return self._limits.max_parked - self._registry.ungranted()

    def fits(self, missing: int) -> bool:
        """Whether `missing` blocks can be taken and what runs can still grow as expected."""
        return missing + self._growth() <= self._tables.pool.available

    def start(self, request: Request) -> Verdict:
        """Give `request`, which waits and is not paused, its blocks."""
        if len(request.choices) > self.slots():
            return Verdict.FULL
        known = len(request.tokens)
        matched = self._tables.match(request, (known - 1) // self._limits.block_size)
        if self._tables.awaited(request, len(matched)):
            return Verdict.SKIPPED
        blocks = self._limits.blocks_for(known if request.room is not None else known + 1)
        if not self.fits(self._tables.missing(matched, blocks)):
            return Verdict.FULL
        self._tables.open(request, matched, blocks)
        if not request.farthest:
            request.cached_tokens = min(request.computed, request.prompt_len)
        self._tables.announce(request)
        self._registry.run(request)
        return Verdict.STARTED

    def _growth(self) -> int:
        """Blocks that what runs will soon ask for; 0 when nothing runs, so that the next one can always start."""
        tokens = self._limits.growth_tokens
        growing = [r for r in self._registry.running if r.schedulable and r.room is None]
        expected = sum(min(tokens, r.params.max_tokens - r.outputs) * len(r.choices) for r in growing)
        return self._limits.blocks_for(expected + tokens * self.reserved)
