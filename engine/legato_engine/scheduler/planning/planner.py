"""Plans a step: running requests first, then waiting ones; preempts requests if blocks are short."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from legato_engine.scheduler.batch import Batch, Draw, Row, Targets
from legato_engine.scheduler.handoff.incoming import IncomingHandoffs
from legato_engine.scheduler.planning.chunk_budget import ChunkBudget
from legato_engine.scheduler.planning.draws import draw, reads_tokens
from legato_engine.scheduler.planning.step_cost import StepCost
from legato_engine.scheduler.queueing.admission import AdmissionControl, Verdict
from legato_engine.scheduler.requests.block_tables import BlockTables
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.requests.request_registry import RequestRegistry
from legato_protocol.step_target import STEP_TARGET

MOST_PREEMPTIONS = 2  # in a row without progress; then the request is protected
MOST_EXAMINED = 32  # waiting requests in one step, so that a long queue does not slow steps down


class Planner:
    """Plans one step at a time. Only requests without a row in that step are preempted."""

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
        self._seconds = inf  # of the step being planned
        self._chunks: ChunkBudget | None = None  # budget of the step being planned, once a prompt needs it
        self.held_up = False  # True if a waiting request that was not started might start in the next step

    def plan(self, seconds: float = inf) -> tuple[list[Row], list[Request]]:
        """Returns the rows of the next step and their requests; prompts should let it end after `seconds`.

        Blocks to copy first are in `BlockTables.copies`.
        """
        self._seconds = seconds
        self._rows, self._flight, self._chunks, self.held_up = [], [], None, False
        self._tables.begin_step()
        running, later = self._order_running()
        preempted, stalled = self._add_running(running, MOST_PREEMPTIONS)
        if later:
            if not preempted:
                self._start_waiting(self._registry.queue.finish_tag(later[0]))
            preempted_later, stalled_later = self._add_running(later, MOST_PREEMPTIONS)
            preempted, stalled = preempted or preempted_later, stalled or stalled_later
        if stalled and not self._rows:  # all wait for each other's blocks: preempt even protected requests
            preempted = self._add_running(tuple(self._registry.running), None)[0] or preempted
        if not (preempted and self._rows):  # blocks that were just taken are not given to waiting requests
            self._start_waiting(inf)
        return self._rows, self._flight

    def plan_ahead(self, batch: Batch, flight: Sequence[Request]) -> tuple[list[Row], list[Request]]:
        """Returns the rows and requests of the step after `batch`, the only one in flight, with requests `flight`.

        Each sequence decodes one more token, which is discarded if the sequence has ended. Nothing is preempted.
        Returns no rows if that step cannot be planned yet: a prompt continues, blocks are short, or sampling depends on
        the token that is being sampled.
        """
        self._rows, self._flight, self._chunks = [], [], None
        self._tables.begin_step()
        drawn: dict[Request, int | None] = {}
        draws = 0
        for request, row in zip(flight, batch.rows, strict=True):
            drawn[request] = draws if row.draws else None
            draws += len(row.draws)
        for request in self._registry.running:
            if request.schedulable and not self._plan_next(request, drawn):
                return [], []
        assert not self._tables.copies, "a block that a step in flight writes to is shared"
        return self._rows, self._flight

    def _plan_next(self, request: Request, drawn: Mapping[Request, int | None]) -> bool:
        """Adds the request's row after the step in flight, whose draws are numbered in `drawn`; False if impossible."""
        if request not in drawn:  # it arrived after `batch` was planned
            plain = request.remaining == 1 and len(request.choices) == 1 and self._tables.is_exclusive(request)
            if not plain or self._tables.grow(request, request.computed + 1):
                return False
            self._add(request, 1)
            return True
        number, known = drawn[request], len(request.tokens)
        if number is None or not _foreseeable(request):
            return False
        params, prompt_len = request.params, request.prompt_len
        # Its last token is being sampled.
        if known + 1 >= self._limits.max_length or known + 1 - prompt_len >= params.max_tokens:
            return True
        if known >= request.writable and self._tables.grow(request, known + 1):
            return False
        draws = (Draw(request.choices[0], known + 1, params, request.tokens, prompt_len, None, request.counts),)
        self._rows.append(
            Row((-1 - number,), known, request.blocks, draws, None, request.loaded_adapter, request.windows)
        )
        self._flight.append(request)
        return True

    def _order_running(self) -> tuple[Sequence[Request], Sequence[Request]]:
        """Running requests in the order in which they get rows.

        The first part goes before all waiting requests. The second part are prompts whose finish tag is after a waiting
        request's.
        """
        running, queue = tuple(self._registry.running), self._registry.queue
        prompts = [request for request in running if len(request.tokens) - request.computed > 1]
        if not prompts:
            return running, ()
        tenants = {request.tenant for request in prompts}
        if len(tenants | queue.tenants.keys()) <= 1:
            return running, ()
        prompts.sort(key=queue.finish_tag)
        first = next(queue.ordered(), None)
        later = [
            request
            for request in prompts
            if first is not None
            and request.tenant != first.tenant
            and queue.finish_tag(request) > queue.finish_tag(first)
        ]
        before = [request for request in prompts if request not in later]
        return [request for request in running if request.remaining <= 1] + before, later

    def _add_running(self, running: Iterable[Request], most: int | None) -> tuple[bool, bool]:
        """Adds rows for `running`. Returns whether a request was preempted, and whether one lacks blocks."""
        preempted = stalled = False
        for request in running:
            if not request.schedulable:
                continue
            if request.computed < request.writable and (row := _decode_row(request)) is not None:
                self._rows.append(row)
                self._flight.append(request)
                continue
            count = request.remaining
            if count > 1:
                count = self._budget().count(request.computed, count, request.scoring)
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
            elif request.schedulable:  # else it was preempted itself
                self._add(request, count)
        return preempted, stalled

    def _take_blocks(self, request: Request, count: int, lacking: int, most: int | None) -> tuple[bool, int]:
        """Takes blocks from others for `count` tokens of `request`.

        Returns whether a request was preempted, and the number of blocks still lacking. `request` itself may be
        preempted; then it lacks nothing.
        """
        preempted = False
        self._incoming.reclaim(lacking)
        lacking = self._tables.grow(request, request.computed + count)
        while lacking and (victim := self._victim(request, most)):
            self._registry.preempt(victim)
            preempted = True
            lacking = 0 if victim is request else self._tables.grow(request, request.computed + count)
        return preempted, lacking

    def _victim(self, request: Request, most: int | None) -> Request | None:
        """The request to preempt for `request`: a paused one, else the newest of lowest priority, perhaps itself."""
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

    def _start_waiting(self, before: float) -> None:
        """Starts waiting requests whose finish tag is at most `before`.

        An incoming transfer needs blocks, but no tokens of the step. It waits only while an earlier request lacks slots
        or blocks, too.
        """
        with self._admission.one_pass():
            self._start_in_order(before)

    def _start_in_order(self, before: float) -> None:
        examined, queue = 0, self._registry.queue
        parkable = self._admission.parkable() if queue else 0
        for request in queue.ordered():
            enough = examined >= MOST_EXAMINED or (self._chunks is not None and self._chunks.exhausted)
            self.held_up |= enough
            if enough or queue.finish_tag(request) > before:
                break
            if request.paused or (request.ungranted and parkable <= 0):
                continue
            examined += 1
            if not self._incoming.grant_before(self._registry.queue.key(request)):
                return
            verdict = self._admission.start(request)
            if verdict is Verdict.FULL:
                if request.sending:
                    self._incoming.reclaim(self._limits.sizes.most(len(request.tokens)))
                return
            if verdict is Verdict.STARTED:
                parkable -= request.ungranted
                if count := self._budget().count(request.computed, request.remaining, request.scoring):
                    self._add(request, count)
            else:
                self.held_up = True  # another request computes its prefix
        self._incoming.grant_before(None)

    def _budget(self) -> ChunkBudget:
        """The step's budget for prompts: `chunk_tokens`, and the time that decodes leave of the target for a step.

        The target, a share of `tpot`, holds even without decodes if transfers are incoming, so that these can decode as
        soon as they arrive. A sequence that has the worker to itself may compute `lone_chunk` tokens.
        """
        if self._chunks is None:
            tokens, target, seconds = self._limits.chunk_tokens, STEP_TARGET * self._limits.tpot, self._seconds
            contexts = self.decoding() if min(target, seconds) < inf else []
            if contexts or seconds < inf or (target < inf and not self._incoming.idle):
                if contexts or not self._incoming.idle:
                    seconds = min(seconds, target)
                self._chunks = self._cost.budget(tokens, len(contexts), sum(contexts), seconds)
            else:
                alone = len(self._registry.running) + len(self._registry.queue) <= 1 and self._incoming.idle
                self._chunks = ChunkBudget(max(tokens, self._limits.lone_chunk) if alone else tokens)
        return self._chunks

    def decoding(self) -> list[int]:
        """The context length of each decode row of the next step."""
        running = self._registry.running
        return [r.computed for r in running if r.schedulable and r.remaining == 1 and r.room is None]

    def _add(self, request: Request, count: int) -> None:
        self._flight.append(request)
        if (row := _decode_row(request)) is not None:
            self._rows.append(row)
            return
        tokens, start = request.tokens, request.computed
        known = len(tokens)
        targets = _targets(request, count) if request.scoring else None
        self._budget().spend(count, start, len(targets.tokens) if targets else 0)
        draws: tuple[Draw, ...] = ()
        if start + count == known and not request.first:
            draws = tuple([draw(request, choice, known) for choice in request.choices])
        adapter, windows = request.loaded_adapter, request.windows
        self._rows.append(Row(tokens[start : start + count], start, request.blocks, draws, targets, adapter, windows))


def _decode_row(request: Request) -> Row | None:
    """The row of a sequence with one choice that decodes, or None. Makes no further calls, because each decoding
    sequence needs one in each step."""
    tokens, start, known = request.tokens, request.computed, len(request.tokens)
    if start + 1 != known or len(request.choices) != 1 or request.first:
        return None
    params = request.params
    draw = Draw(request.choices[0], known, params, tokens, request.prompt_len, request.grammar, request.counts)
    return Row((tokens[start],), start, request.blocks, (draw,), None, request.loaded_adapter, request.windows)


def _foreseeable(request: Request) -> bool:
    """True if the token after the next can be sampled while only the device knows the next one."""
    return request.room is None and len(request.choices) == 1 and not reads_tokens(request)


def _targets(request: Request, count: int) -> Targets | None:
    """Targets of a row of the request's next `count` tokens."""
    start, alternatives = request.computed, request.params.prompt_logprobs
    tokens = request.tokens[start + 1 : min(start + count + 1, request.prompt_len)]
    return Targets(tokens, alternatives) if tokens and alternatives is not None else None
