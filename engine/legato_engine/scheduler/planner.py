"""Makes a step: running requests first, then waiting ones; takes blocks from others where they are short."""

from math import inf

from legato_engine.request import Request
from legato_engine.scheduler.admission import AdmissionControl, Verdict
from legato_engine.scheduler.batch import Draw, Row
from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.chunk_budget import ChunkBudget
from legato_engine.scheduler.incoming import IncomingHandoffs
from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.request_registry import RequestRegistry
from legato_engine.scheduler.step_cost import StepCost

MOST_PREEMPTIONS = 2  # without progress in between: who was preempted so often stays
MOST_LOOKED_AT = 32  # waiting requests in one step, so that a long queue costs no more


class Planner:
    """Plans one step at a time. Blocks are taken only from requests that have no row in the step being planned."""

    def __init__(
        self,
        limits: SchedulerLimits,
        registry: RequestRegistry,
        tables: BlockTables,
        admission: AdmissionControl,
        incoming: IncomingHandoffs,
        cost: StepCost,
    ) -> None:
        self._limits = limits
        self._registry = registry
        self._tables = tables
        self._admission = admission
        self._incoming = incoming
        self._cost = cost
        self._rows: list[Row] = []
        self._flight: list[Request] = []
        self._chunks: ChunkBudget | None = None  # of the step being planned, once a prompt asks

    def plan(self) -> tuple[list[Row], list[Request]]:
        """The rows of the next step and whose they are. Copies are left in the tables."""
        self._rows, self._flight, self._chunks = [], [], None
        self._tables.begin_step()
        preempted, stalled = self._run_on(MOST_PREEMPTIONS)
        if stalled and not self._rows:  # everyone waits for blocks of everyone: somebody must give way after all
            preempted = self._run_on(None)[0] or preempted
        if not (preempted and self._rows):  # what was just taken is not given away again
            self._start_waiting()
        return self._rows, self._flight

    def _run_on(self, most: int | None) -> tuple[bool, bool]:
        """Rows for running requests; whether some were preempted, whether some got no row for want of blocks."""
        preempted = stalled = False
        for request in tuple(self._registry.running):
            if not request.schedulable:
                continue
            count = request.remaining
            if count > 1:
                count = self._budget().count(request.computed, count)
                if not count:
                    continue
            lacking = self._tables.grow(request, request.computed + count)
            if not lacking:
                self._add(request, count)
                continue
            taken, lacking = self._take_blocks(request, count, lacking, most)
            preempted |= taken
            if lacking:
                stalled = True
            elif request.schedulable:  # and not preempted itself
                self._add(request, count)
        return preempted, stalled

    def _take_blocks(self, request: Request, count: int, lacking: int, most: int | None) -> tuple[bool, int]:
        """Take blocks from others for `count` tokens of `request`: whether that preempted one, what is lacking still.

        The one preempted may be `request` itself, which then lacks nothing."""
        preempted = False
        self._incoming.reclaim(lacking)
        lacking = self._tables.grow(request, request.computed + count)
        while lacking and (victim := self._victim(request, most)):
            self._registry.preempt(victim)
            preempted = True
            lacking = 0 if victim is request else self._tables.grow(request, request.computed + count)
        return preempted, lacking

    def _victim(self, request: Request, most: int | None) -> Request | None:
        """Whose blocks `request` gets: of a paused one, else of the newest of lowest priority, itself included."""
        scheduled = set(self._flight)
        last = None
        for other in reversed(self._registry.running):
            if other.sending or other in scheduled or (most is None and other is request):
                continue
            if most is not None and other.preemptions >= most:
                continue
            if other.paused:
                return other
            last = last or other
        return last

    def _start_waiting(self) -> None:
        looked_at, parkable = 0, self._admission.parkable()
        for request in self._registry.queue:
            if (self._chunks is not None and self._chunks.exhausted) or looked_at >= MOST_LOOKED_AT:
                return
            if request.paused or (request.ungranted and parkable <= 0):
                continue
            looked_at += 1
            if not self._incoming.grant_before(self._registry.queue.key(request)):
                return
            verdict = self._admission.start(request)
            if verdict is Verdict.FULL and self._free_paused():
                verdict = self._admission.start(request)
            if verdict is Verdict.FULL:
                if request.sending:
                    self._incoming.reclaim(self._limits.blocks_for(len(request.tokens)))
                return
            if verdict is Verdict.STARTED:
                parkable -= request.ungranted
                if count := self._budget().count(request.computed, request.remaining):
                    self._add(request, count)
        self._incoming.grant_before(None)

    def _free_paused(self) -> bool:
        """Take the blocks of a paused request when nothing else runs that would ever give some back."""
        running = self._registry.running
        if any(request.schedulable for request in running):
            return False
        paused = [request for request in running if request.paused and not request.sending]
        if paused:
            self._registry.preempt(paused[-1])
        return bool(paused)

    def _budget(self) -> ChunkBudget:
        """What prompts may still take of this step: `chunk_tokens`, and no more time than decodes leave of `tpot`."""
        if self._chunks is None:
            tokens, tpot = self._limits.chunk_tokens, self._limits.tpot
            contexts = self._decoding() if tpot < inf else []
            if contexts:
                self._chunks = self._cost.budget(tokens, len(contexts), sum(contexts), tpot)
            else:
                self._chunks = ChunkBudget(tokens)
        return self._chunks

    def _decoding(self) -> list[int]:
        """Tokens before the one that a decode row computes, for each such row of the step."""
        running = self._registry.running
        return [r.computed for r in running if r.schedulable and r.remaining == 1 and r.room is None]

    def _add(self, request: Request, count: int) -> None:
        tokens, start = request.tokens, request.computed
        known = len(tokens)
        if count == 1 and start + 1 == known and len(request.choices) == 1 and not request.first:  # a plain decode
            draw = Draw(request.choices[0], known, request.params, tokens, request.prompt_len)
            self._rows.append(Row(tokens[-1:], start, request.blocks, (draw,)))
            self._flight.append(request)
            return
        self._budget().spend(count, start)
        draws: tuple[Draw, ...] = ()
        if start + count == known and not request.first:
            params, prompt_len = request.params, request.prompt_len
            draws = tuple([Draw(choice, known, params, tokens, prompt_len) for choice in request.choices])
        self._rows.append(Row(tokens[start : start + count], start, request.blocks, draws))
        self._flight.append(request)
