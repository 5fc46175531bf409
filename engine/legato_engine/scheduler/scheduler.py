"""The scheduler: plans steps and processes their output. Pure: time is passed in.

    batch = scheduler.schedule(now)                     # None: there is nothing to compute
    result = scheduler.process(batch, output, now)

One step may be in flight, followed by one of `schedule_ahead`. Between `schedule` and `process` every other method may
be called; blocks that these free are reused only after the last step that uses them is processed. There are no separate
prefill and decode phases: every request has known and computed tokens, running ones go first (the idea is vLLM's and
mini-sglang's), and a prompt is computed in chunks, so that decoding never stalls.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from traceback import extract_tb
from typing import NamedTuple

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.disk_tier import Outcome
from legato_engine.scheduler.batch import Batch, DraftRow, Row, Scored, StepOutput
from legato_engine.scheduler.handoff.incoming import IncomingHandoffs
from legato_engine.scheduler.handoff.loans import BlockLoans
from legato_engine.scheduler.handoff.outgoing import OutgoingHandoffs
from legato_engine.scheduler.handoff.transfers import IncomingTransfer
from legato_engine.scheduler.output_processor import OutputProcessor
from legato_engine.scheduler.planning.planner import Planner
from legato_engine.scheduler.planning.step_cost import StepCost
from legato_engine.scheduler.planning.step_work import StepWork, scored_in, work_of
from legato_engine.scheduler.queueing.admission import AdmissionControl
from legato_engine.scheduler.queueing.output_lengths import OutputLengthEstimator
from legato_engine.scheduler.queueing.queue import Order, WaitingQueue
from legato_engine.scheduler.queueing.tenants import TenantTokens
from legato_engine.scheduler.requests.block_tables import BlockTables, tables_of
from legato_engine.scheduler.requests.limits import RequestRejected, SchedulerLimits
from legato_engine.scheduler.requests.request import Request, RequestState
from legato_engine.scheduler.requests.request_registry import RequestRegistry
from legato_engine.scheduler.results import EndedSequences, SchedulerLoad, StepResult
from legato_engine.scheduler.speculation.drafter import Drafter
from legato_engine.scheduler.speculation.speculation import Speculation

PAUSE = 2  # decode steps' time for other workers' prompts after each decode step, if `tpot` allows it
LEAST_PAUSE = 0.5  # the same, even if `tpot` does not allow it
MOST_AHEAD = 16  # consecutive steps that ignore waiting requests


class StepPace(NamedTuple):
    """The time for the next steps of a worker that shares its cores, in seconds.

    After a step, decoding sequences can wait for `slack` without missing `tpot`, less a share for prompts here; inf if
    none decodes. For `pause`, they leave the cores to prompts of other workers. Their next step takes `decoding`.
    `prompts` wait or are computed here.
    """

    slack: float = inf
    pause: float = inf
    decoding: float = 0.0
    prompts: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    """A step in flight, the requests of its rows, and the time when it was scheduled.

    Logprobs of `scored` of its prompt tokens are requested."""

    batch: Batch
    requests: list[Request]
    began: float
    work: StepWork
    scored: int


class Scheduler:
    """The sequences of one worker: steps, arrivals and ends. `incoming` and `outgoing` are their hand-offs, `loans`
    the cached blocks that other workers fetch.

    `kv_revision` is part of the root of every block hash. A `drafter` guesses tokens that steps then verify; a draft
    model has steps of its own between them, see `Batch`.
    """

    def __init__(
        self, limits: SchedulerLimits, pool: BlockPool, kv_revision: str, drafter: Drafter | None = None
    ) -> None:
        self.limits = limits
        self._sizes = limits.sizes
        self.pool = pool
        self._tables = BlockTables(pool, limits.sizes, kv_revision)
        self._queue = WaitingQueue(Order(limits))
        self._registry = RequestRegistry(self._tables, self._queue)
        self._lengths = OutputLengthEstimator()
        self._admission = AdmissionControl(limits, self._registry, self._tables, self._lengths)
        self._output = OutputProcessor(limits, self._registry, self._tables, self._lengths)
        deliver = self._output.append_tokens
        self.incoming = IncomingHandoffs(limits, self._registry, self._tables, self._admission, deliver)
        self.outgoing = OutgoingHandoffs(self._registry, self._tables)
        self.loans = BlockLoans(self._tables, limits.sizes)
        self._cost = StepCost()
        self._planner = Planner(limits, self._registry, self._tables, self._admission, self.incoming, self._cost)
        self._speculation = Speculation(limits, self._tables, self._cost, self._lengths, drafter)
        self._steps: deque[_Step] = deque()
        self._ended = 0.0  # when the last step was processed
        # Numbers of waiting and running requests after the last `schedule`, if it started all that could start.
        self._saturated: tuple[int, int] | None = None
        self._ahead = 0  # steps since then
        self._tenants = TenantTokens()

    # Steps

    def add(self, request: Request, now: float) -> None:
        """Queues a request (Generate, or Prefill: with `room`).

        Raises RequestRejected: invalid (too long, can never fit, no token to generate) or overloaded (queue full).
        """
        self.limits.check(request, self.pool.size)
        if len(self._queue) >= self.limits.max_waiting:
            raise RequestRejected("overloaded", f"{len(self._queue)} requests wait already")
        self._registry.arrive(request, now)
        if request.room is not None:
            self.outgoing.prefill(request)
        self._registry.wait(request)

    def schedule(self, now: float, seconds: float = inf) -> Batch | None:
        """Plans the next step, whose prompts should end after `seconds`; None if there is nothing to compute or move.

        RuntimeError while a step is in flight.
        """
        if self._steps:
            raise RuntimeError("a step is in flight")
        if not self._may_start():
            drafting, requests = self._speculation.begin(self._registry.running)
            if drafting:
                return self._launch([], requests, now, drafting)
        if self.pool.disk.capacity:
            cost = self._cost.prefill(self.limits.chunk_tokens)
            self._tables.reads.begin(now, self.limits.block_size / cost.rate if cost and cost.rate else 0.0)
        planned = self._planner.plan(seconds)
        self._speculation.extend(*planned)
        counts = len(self._queue), len(self._registry.running)
        self._saturated, self._ahead = None if self._planner.held_up else counts, 0
        rows, requests = planned
        return self._launch(rows, requests, now) if rows or self.pool.host.pending else None

    def schedule_ahead(self, now: float) -> Batch | None:
        """Plans the step after the one in flight, for a runner that launches it before that one ends (see `Row`).

        None if there is not exactly one step in flight, a waiting request might start, or the step would not only
        decode, or should have drafts.
        """
        self._ahead += 1
        if len(self._steps) != 1 or self._may_start():
            return None
        step = self._steps[0]
        if self._speculation.waits(step.batch, self._registry.running):
            return None
        rows, requests = self._planner.plan_ahead(step.batch, step.requests)
        return self._launch(rows, requests, now) if rows else None

    def take_started(self) -> list[Request]:
        """Returns, once each, requests whose first step is in flight."""
        fresh = [request for step in self._steps for request in step.requests if not request.started]
        for request in fresh:
            request.started = True
        return fresh

    @property
    def expected(self) -> float | None:
        """Seconds that the first step in flight should take; 0: unknown. None if there is no step in flight."""
        if not self._steps:
            return None
        step = self._steps[0]
        work = step.work
        if step.batch.drafting:
            return 0.0
        expected = self._cost.expected(work.rows, work.context, work.tokens, work.pairs, step.scored)
        return expected * self._speculation.times(work) if work.drafts else expected

    @property
    def runnable(self) -> bool:
        """True if the next step might compute something."""
        return len(self._queue) > 0 or any(request.schedulable for request in self._registry.running)

    @property
    def pace(self) -> StepPace:
        """The time for the next steps."""
        contexts = self._planner.decoding()
        prompts = len(self._queue) + len(self._registry.running) - len(contexts)
        if not contexts:
            return StepPace(prompts=prompts)
        step = self._cost.plain(len(contexts), sum(contexts))
        slack = max(0.0, self.limits.tpot - step) * (0.5 if prompts else 1.0)
        return StepPace(slack, max(min(slack, PAUSE * step), LEAST_PAUSE * step), step, prompts)

    def process(self, batch: Batch, output: StepOutput, now: float, moving: float = 0.0) -> StepResult:
        """Processes the runner's output of the first step in flight, which spent `moving` seconds on its moves. Its KV
        events are then in `pool.take_events()`.

        ValueError if `batch` is not that step.
        """
        if not self._steps or batch is not self._steps[0].batch:
            raise ValueError("this is not the first step in flight")
        step = self._steps.popleft()
        self._tables.end_step()
        seconds, self._ended = now - max(step.began, self._ended) - moving, now
        if batch.drafting:
            self._speculation.take(batch, step.requests, output, seconds)
            return StepResult()
        result = StepResult()
        work = step.work
        result.decode_rows, result.prompt_tokens, result.drafted = work.rows, work.tokens, work.drafts
        served: defaultdict[str, int] = defaultdict(int)
        for request, row, sampled in zip(step.requests, batch.rows, output, strict=True):
            computed = len(row.tokens) - row.drafts
            if row.start < request.prompt_len:
                fresh = min(row.start + computed, request.prompt_len) - max(row.start, request.farthest)
                result.prompts.append((request, max(0, fresh)))
            before = result.accepted
            self._output.process_row(request, row, sampled, result)
            served[request.tenant] += computed + result.accepted - before
        self._tenants.add(served)
        scoring = sum([row.seconds for row in output if isinstance(row, Scored)]) if step.scored else 0.0
        seconds = max(0.0, seconds - scoring)
        if not batch.rows:
            return result
        result.drafting = self._speculation.take_time()
        self._queue.measure(result.prompt_tokens, seconds)
        if not work.drafts:
            self._cost.measure(work.rows, work.context, work.tokens, work.pairs, seconds)
        if not work.tokens:
            self._speculation.measure(work, work.rows + result.accepted, seconds, result.drafting)
        self._cost.measure_scores(step.scored, scoring)
        return result

    def on_disk_done(self, outcome: Outcome) -> None:
        """A block was read from a file, or written to one."""
        self._tables.reads.on_done(outcome)

    # Ending

    def cancel(self, id: str, attempt: int, choices: Collection[int] = (), *, cut_off: bool = False) -> EndedSequences:
        """Ends requests and incoming transfers of this id with this or a lower attempt; unknown ids are ignored.

        With `choices`, only those that have no other choice. `cut_off` if the gateway did not ask for it, see
        `OutputLengthEstimator`.
        """

        def meant(request: Request) -> bool:
            return request.attempt <= attempt and (not choices or all(c in choices for c in request.choices))

        return self._end(
            [r for r in self._registry.by_id(id) if meant(r)],
            [t for t in self.incoming if t.request.id == id and meant(t.request)],
            cut_off,
        )

    def expire(self, now: float) -> EndedSequences:
        """Ends requests and incoming transfers whose deadline has passed."""
        if now < self._registry.earliest_deadline:
            return EndedSequences()
        ended = self._end(
            [r for r in self._registry if r.deadline <= now],
            [t for t in self.incoming if t.request.deadline <= now],
            cut_off=True,
        )
        self._registry.update_earliest_deadline(transfer.request for transfer in self.incoming)
        return ended

    @property
    def earliest_deadline(self) -> float:
        """A lower bound for the time at which `expire` has something to end."""
        return self._registry.earliest_deadline

    def rename(self, request: Request, id: str) -> None:
        """Changes the request's id."""
        self._registry.rename(request, id)

    def pause(self, id: str, attempt: int, on: bool) -> None:
        """Pauses a request, or resumes it with `on` False. It keeps its blocks until others need them."""
        for request in (*self._registry.by_id(id), *(t.request for t in self.incoming if t.request.id == id)):
            if request.attempt == attempt:
                request.paused = on

    # State

    def requests(self, id: str) -> tuple[Request, ...]:
        """Requests with this id (one per choice after a fork), without incoming transfers."""
        return self._registry.by_id(id)

    def adapters(self) -> frozenset[str]:
        """Digests of the adapters of all sequences here."""
        return frozenset(request.adapter for request in self._adapted())

    def waiting_for_peers(self) -> frozenset[Request]:
        """Sequences that wait for another worker and whose adapters no other sequence here uses."""
        adapted = self._adapted()
        waiting = {r for r in adapted if r.ungranted and r.state is not RequestState.RUNNING}
        busy = {r.adapter for r in adapted if r not in waiting}
        return frozenset(r for r in waiting if r.adapter not in busy)

    def load(self) -> SchedulerLoad:
        counts = self.pool.counts()
        prefilling = [r for r in self._registry.running if r.remaining > 1]
        decoding = [r.computed for r in self._registry.running if r.remaining == 1 and r.room is None]
        growth, next_growth = self._admission.expected_growth(self.incoming.waiting)
        return SchedulerLoad(
            queue_tokens=self._queue.tokens + sum(r.remaining for r in prefilling),
            waiting=len(self._queue) + self.incoming.pending,
            running=len(self._registry.running),
            free_blocks=counts.free,
            cached_blocks=counts.cached,
            used_blocks=counts.used,
            quarantined_blocks=counts.quarantined,
            kv_utilization=self._utilization(counts.used),
            tokens_by_tenant=self._tenants.counts(),
            parked=len(self._registry.parked),
            parked_tokens=self._parked_tokens(),
            granted_blocks=self.incoming.granted_blocks,
            pending_blocks=self._pending_blocks(),
            growth_blocks=growth,
            next_growth_blocks=next_growth,
            decoding=len(decoding),
            context_tokens=sum(decoding),
            preemptions=self._registry.preemptions,
            shared_prompt_tokens=self._tables.shared_tokens,
            tiers=self.pool.tier_counts(),
            paused_blocks=self._admission.paused_blocks(),
            paused=sum([r.paused for r in (*self._registry.running, *self._queue, *self.incoming.waiting)]),
            granted=len(self._admission.reserved),
            prompts=sum(not r.outputs for r in self._queue) + sum(not r.outputs for r in prefilling),
            prompt_tokens=sum(r.uncached for r in self._queue if not r.outputs)
            + sum(r.remaining for r in prefilling if not r.outputs),
            prefill_cost=self._cost.prefill(self.limits.chunk_tokens),
            decode_cost=self._speculation.per_token(self._cost.decode()),
        )

    @property
    def idle(self) -> bool:
        """True if nothing is queued, running, parked, handed over, lent, reserved or quarantined."""
        return not (len(self._registry) or len(self.loans) or self._steps) and self.incoming.idle

    def check_integrity(self) -> None:
        """Raises AssertionError if the pool's references do not match the block tables."""
        tables = [blocks for request in self._registry for blocks in tables_of(request)]
        tables += [transfer.all_blocks for transfer in self.incoming]
        self._tables.check_integrity(tables + [blocks for loan in self.loans for blocks in loan.tables])
        self.incoming.check_integrity()
        for request in self._registry:
            self._tables.check_writable(request)
            self._tables.check_windows(request)
            assert request.state is not RequestState.ENDED or request.sending, f"{request.id} has ended and is kept"

    def mismatch(self) -> str:
        """The fault that `check_integrity` reports, a bug of this program, or ""."""
        try:
            self.check_integrity()
        except AssertionError as error:
            return str(error) or str(extract_tb(error.__traceback__)[-1].line)
        return ""

    def _launch(self, rows: list[Row], requests: list[Request], now: float, drafting: Sequence[DraftRow] = ()) -> Batch:
        moves = self._tables.launch(requests)
        batch = Batch(tuple(rows), () if drafting else tuple(self._tables.copies), moves, tuple(drafting))
        self._steps.append(_Step(batch, requests, now, work_of(batch), scored_in(batch)))
        return batch

    def _may_start(self) -> bool:
        """True if `schedule` might start a waiting request."""
        waiting = len(self._queue)
        return waiting > 0 and (self._ahead > MOST_AHEAD or self._saturated != (waiting, len(self._registry.running)))

    def _adapted(self) -> list[Request]:
        """All requests with an adapter, including incoming transfers."""
        incoming = (transfer.request for transfer in self.incoming)
        return [request for request in (*self._registry, *incoming) if request.adapter]

    def _utilization(self, used_blocks: int) -> float:
        slots, size = used_blocks * self.limits.block_size, self.limits.block_size
        empty = sum([len(request.blocks) * size - request.computed for request in self._registry])
        if self.limits.windows:
            ends = [(table.end, request.computed) for request in self._registry for table in request.windows]
            empty += sum([end * size - computed for end, computed in ends])
        empty += sum(transfer.fresh * size for transfer in self.incoming)
        return max(0.0, 1 - empty / slots) if slots else 1.0

    def _parked_tokens(self) -> int:
        """Uncached tokens of prompts that may not start, since the limit of ungranted prefills is reached."""
        if self._admission.parkable() > 0:
            return 0
        return sum(request.uncached for request in self._queue if request.ungranted)

    def _pending_blocks(self) -> int:
        """Blocks that waiting requests and transfers need: uncached blocks of prompts, all blocks of transfers."""
        limits, sizes, needed = self.limits, self._sizes, self._admission.started_blocks
        prompts = sum([needed(r) - sizes.decoding(len(r.tokens) - r.uncached) for r in self._queue])
        return prompts + sum([sizes.decoding(limits.reserved_tokens(r)) for r in self.incoming.waiting])

    def _end(self, requests: list[Request], incoming: list[IncomingTransfer], cut_off: bool) -> EndedSequences:
        record = self._lengths.add_cut_off if cut_off else self._lengths.add_ended
        alive = tuple(request for request in requests if request.state is not RequestState.ENDED)
        for request in alive:
            record(request)
            self._registry.end(request)
        for transfer in incoming:
            self.incoming.abandon(transfer)
        return EndedSequences(alive, tuple(incoming))
