"""The scheduler: who computes what in the next step, and what a step's output means. Pure: time is passed in.

    batch = scheduler.schedule(now)                     # None: nothing can be computed now
    result = scheduler.process(batch, output, now)

One step may be in flight, and behind it one that `schedule_ahead` made. Between `schedule` and `process` every other
method may be called; blocks given up then are reused only after the last step that touches them was processed. There
are no phases: every request has known and computed tokens, running ones go first (the idea is vLLM's and
mini-sglang's), and a prompt is computed in chunks, so that decoding never stalls.
"""

from collections import defaultdict, deque
from collections.abc import Collection
from dataclasses import dataclass
from traceback import extract_tb

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.scheduler.admission import AdmissionControl
from legato_engine.scheduler.batch import Batch, Row, Scored, StepOutput
from legato_engine.scheduler.block_tables import BlockTables
from legato_engine.scheduler.chunk_budget import pairs
from legato_engine.scheduler.incoming import IncomingHandoffs
from legato_engine.scheduler.limits import RequestRejected, SchedulerLimits
from legato_engine.scheduler.outgoing import OutgoingHandoffs
from legato_engine.scheduler.output_lengths import OutputLengths
from legato_engine.scheduler.output_processor import OutputProcessor
from legato_engine.scheduler.planner import Planner
from legato_engine.scheduler.queue import Order, WaitingQueue
from legato_engine.scheduler.request import Request, RequestState
from legato_engine.scheduler.request_registry import RequestRegistry
from legato_engine.scheduler.results import Ended, SchedulerLoad, StepResult
from legato_engine.scheduler.step_cost import StepCost
from legato_engine.scheduler.tenants import TenantTokens
from legato_engine.scheduler.transfers import IncomingTransfer

MOST_AHEAD = 16  # steps in a row that leave aside who waits


@dataclass(frozen=True, slots=True)
class _Step:
    """One in flight, the requests of its rows, and when it was scheduled."""

    batch: Batch
    requests: list[Request]
    began: float


class Scheduler:
    """The sequences of one worker: steps, arrivals and ends. `incoming` and `outgoing` are their hand-offs.

    `kv_revision` goes into the root of every block hash."""

    def __init__(self, limits: SchedulerLimits, pool: BlockPool, kv_revision: str) -> None:
        self.limits = limits
        self.pool = pool
        self._tables = BlockTables(pool, limits.block_size, kv_revision)
        self._queue = WaitingQueue(Order(limits))
        self._registry = RequestRegistry(self._tables, self._queue)
        self._lengths = OutputLengths()
        self._admission = AdmissionControl(limits, self._registry, self._tables, self._lengths)
        self._output = OutputProcessor(limits, self._registry, self._tables, self._lengths)
        self.incoming = IncomingHandoffs(limits, self._registry, self._tables, self._admission, self._output.tokens)
        self.outgoing = OutgoingHandoffs(self._registry, self._tables)
        self._cost = StepCost()
        self._planner = Planner(limits, self._registry, self._tables, self._admission, self.incoming, self._cost)
        self._steps: deque[_Step] = deque()
        self._ended = 0.0  # when the last one was processed
        self._stuck: tuple[int, int] | None = None  # how many waited, and ran, if the planner had started all it could
        self._ahead = 0  # steps since then
        self._tenants = TenantTokens()

    # Steps

    def add(self, request: Request, now: float) -> None:
        """Queue a request (Generate, or Prefill: with `room`).

        Raises RequestRejected: invalid (too long, can never fit, nothing left to make) or overloaded (queue full)."""
        self.limits.check(request, self.pool.size)
        if len(self._queue) >= self.limits.max_waiting:
            raise RequestRejected("overloaded", f"{len(self._queue)} requests wait already")
        self._registry.arrive(request, now)
        if request.room is not None:
            self.outgoing.prefill(request)
        self._registry.wait(request)

    def schedule(self, now: float) -> Batch | None:
        """The next step, or None when nothing can be computed now. RuntimeError while a step is in flight."""
        if self._steps:
            raise RuntimeError("a step is in flight")
        planned = self._planner.plan()
        counts = len(self._queue), len(self._registry.running)
        self._stuck, self._ahead = None if self._planner.held_up else counts, 0
        return self._fly(*planned, now)

    def schedule_ahead(self, now: float) -> Batch | None:
        """The step after the one in flight, for a runner that launches it before that one has ended: see `Row.tokens`.

        None where it cannot be known yet, or should not: there is none in flight, or two; it would not only decode; one
        of those that wait might start."""
        self._ahead += 1
        if len(self._steps) != 1 or self._may_start():
            return None
        step = self._steps[0]
        return self._fly(*self._planner.plan_ahead(step.batch, step.requests), now)

    def begun(self) -> list[Request]:
        """Those that have their first part in a step in flight; told once."""
        fresh = [request for step in self._steps for request in step.requests if not request.begun]
        for request in fresh:
            request.begun = True
        return fresh

    @property
    def expected(self) -> float | None:
        """Seconds that the first step in flight should take, by those before it; 0: unknown. None when no step is."""
        if not self._steps:
            return None
        batch = self._steps[0].batch
        return self._cost.expected(*_work(batch), _scored(batch))

    def process(self, batch: Batch, output: StepOutput, now: float) -> StepResult:
        """Take in what the runner made of the first step in flight. Its KV events are in `pool.events.take()` after it.

        ValueError when `batch` is not that step."""
        if not self._steps or batch is not self._steps[0].batch:
            raise ValueError("this is not the first step in flight")
        step = self._steps.popleft()
        self._tables.end_step()
        result = StepResult()
        result.decode_rows, context, result.prompt_tokens, attended = _work(batch)
        served: defaultdict[str, int] = defaultdict(int)
        for request, row, sampled in zip(step.requests, batch.rows, output, strict=True):
            computed = len(row.tokens)
            served[request.tenant] += computed
            if row.start < request.prompt_len:
                fresh = min(row.start + computed, request.prompt_len) - max(row.start, request.farthest)
                result.prompts.append((request, max(0, fresh)))
            self._output.row(request, computed, sampled, result)
        self._tenants.add(served)
        scoring = sum([row.seconds for row in output if isinstance(row, Scored)])
        seconds = now - max(step.began, self._ended) - scoring  # of what all steps have
        self._ended = now
        self._queue.measured(result.prompt_tokens, seconds)
        self._cost.measured(result.decode_rows, context, result.prompt_tokens, attended, seconds)
        self._cost.measured_scores(_scored(batch), scoring)
        return result

    # Ending

    def cancel(self, id: str, attempt: int, choices: Collection[int] = (), *, cut_off: bool = False) -> Ended:
        """End everything of this id at this and lower attempts, incoming too; with `choices`, only what stands for none
        beside these. Unknown ids and choices end nothing. `cut_off` when nobody asked for that: see `OutputLengths`."""

        def meant(request: Request) -> bool:
            return request.attempt <= attempt and (not choices or all(c in choices for c in request.choices))

        return self._end(
            [r for r in self._registry.of(id) if meant(r)],
            [t for t in self.incoming if t.request.id == id and meant(t.request)],
            cut_off,
        )

    def expire(self, now: float) -> Ended:
        """End everything whose deadline is past."""
        if now < self._registry.earliest_deadline:
            return Ended()
        ended = self._end(
            [r for r in self._registry if r.deadline <= now],
            [t for t in self.incoming if t.request.deadline <= now],
            cut_off=True,
        )
        self._registry.look_at_deadlines(transfer.request for transfer in self.incoming)
        return ended

    def rename(self, request: Request, id: str) -> None:
        """Know `request` by another id from here on."""
        self._registry.rename(request, id)

    def pause(self, id: str, attempt: int, on: bool) -> None:
        """Make no tokens for it (or, with `on` False, go on). It keeps its blocks until somebody needs them."""
        for request in (*self._registry.of(id), *(t.request for t in self.incoming if t.request.id == id)):
            if request.attempt == attempt:
                request.paused = on

    # What is here

    def requests(self, id: str) -> tuple[Request, ...]:
        """All of this id (one per choice after a fork), incoming ones not included."""
        return self._registry.of(id)

    def adapters(self) -> frozenset[str]:
        """Those that sequences here compute with, or will."""
        return frozenset(request.adapter for request in self._adapted())

    def waiting_for_peers(self) -> frozenset[Request]:
        """Sequences that go on when another worker does, of adapters that no others here compute with."""
        adapted = self._adapted()
        waiting = {r for r in adapted if r.ungranted and r.state is not RequestState.RUNNING}
        busy = {r.adapter for r in adapted if r not in waiting}
        return frozenset(r for r in waiting if r.adapter not in busy)

    def load(self) -> SchedulerLoad:
        counts = self.pool.counts()
        prefilling = [r for r in self._registry.running if r.remaining > 1]
        decoding = [r.computed for r in self._registry.running if r.remaining == 1 and r.room is None]
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
            growth_blocks=self._admission.expected_growth(self.incoming.waiting),
            decoding=len(decoding),
            context_tokens=sum(decoding),
            preemptions=self._registry.preemptions,
            shared_prompt_tokens=self._tables.shared_tokens,
            paused_blocks=self._admission.paused_blocks(),
            prompts=sum(not r.outputs for r in self._queue) + sum(not r.outputs for r in prefilling),
            prompt_tokens=sum(r.uncached for r in self._queue if not r.outputs)
            + sum(r.remaining for r in prefilling if not r.outputs),
            prefill_cost=self._cost.prefill(self.limits.chunk_tokens),
            decode_cost=self._cost.decode(),
        )

    @property
    def idle(self) -> bool:
        """Nothing is queued, running, parked, handed over, reserved or quarantined."""
        return not len(self._registry) and self.incoming.idle and not self._steps

    def check_integrity(self) -> None:
        """Raise AssertionError when the pool's references and the owners here disagree."""
        tables = [request.blocks for request in self._registry]
        self._tables.check_integrity(tables + [transfer.blocks for transfer in self.incoming])
        self.incoming.check_integrity()
        for request in self._registry:
            self._tables.check_writable(request)
            assert request.state is not RequestState.ENDED or request.sending, f"{request.id} has ended and is kept"

    def mismatch(self) -> str:
        """What is wrong with the owners of blocks, if anything is: a fault of this program."""
        try:
            self.check_integrity()
        except AssertionError as error:
            return str(error) or str(extract_tb(error.__traceback__)[-1].line)
        return ""

    def _fly(self, rows: list[Row], requests: list[Request], now: float) -> Batch | None:
        if not rows:
            return None
        self._tables.fly(requests)
        self._steps.append(_Step(Batch(tuple(rows), tuple(self._tables.copies)), requests, now))
        return self._steps[-1].batch

    def _may_start(self) -> bool:
        """Whether a step that is planned as usual might start one of those that wait."""
        waiting = len(self._queue)
        return waiting > 0 and (self._ahead > MOST_AHEAD or self._stuck != (waiting, len(self._registry.running)))

    def _adapted(self) -> list[Request]:
        """All with an adapter, incoming ones included."""
        incoming = (transfer.request for transfer in self.incoming)
        return [request for request in (*self._registry, *incoming) if request.adapter]

    def _utilization(self, used_blocks: int) -> float:
        slots, size = used_blocks * self.limits.block_size, self.limits.block_size
        empty = sum(len(request.blocks) * size - request.computed for request in self._registry)
        empty += sum(transfer.fresh * size for transfer in self.incoming)
        return max(0.0, 1 - empty / slots) if slots else 1.0

    def _parked_tokens(self) -> int:
        """Uncached tokens of prompts that may not begin: enough is computed that no receiver has blocks for."""
        if self._admission.parkable() > 0:
            return 0
        return sum(request.uncached for request in self._queue if request.ungranted)

    def _pending_blocks(self) -> int:
        """What those that wait would take from the pool: prompts what no cache covers, transfers all they reserve."""
        limits, first = self.limits, self._admission.first_blocks
        prompts = sum([first(r) - (len(r.tokens) - r.uncached) // limits.block_size for r in self._queue])
        return prompts + sum([limits.blocks_for(limits.reserved(r)) for r in self.incoming.waiting])

    def _end(self, requests: list[Request], incoming: list[IncomingTransfer], cut_off: bool) -> Ended:
        record = self._lengths.cut_off if cut_off else self._lengths.ended
        alive = tuple(request for request in requests if request.state is not RequestState.ENDED)
        for request in alive:
            record(request)
            self._registry.end(request)
        for transfer in incoming:
            self.incoming.abandon(transfer)
        return Ended(alive, tuple(incoming))


def _work(batch: Batch) -> tuple[int, int, int, float]:
    """As `StepCost` counts it: rows that decode, tokens before them, tokens of prompts, pairs."""
    rows, context, tokens, attended = 0, 0, 0, 0.0
    for row in batch.rows:
        computed = len(row.tokens)
        if computed == 1 and row.draws:
            rows += 1
            context += row.start
        else:
            tokens += computed
            attended += pairs(computed, row.start)
    return rows, context, tokens, attended


def _scored(batch: Batch) -> int:
    """Tokens of prompts whose logprobs are asked for."""
    return sum([len(row.targets.tokens) for row in batch.rows if row.targets is not None])
