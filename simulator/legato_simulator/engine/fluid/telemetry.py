"""The fluid engine's signals, as gateways and workers would report them to the operator."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

from legato_operator.policy import (
    NEWEST,
    RECENT,
    WINDOW,
    Blocks,
    DecodeCost,
    OutputLengths,
    PrefillCost,
    PromptLengths,
    Signals,
    Traffic,
    WorkerSignals,
)
from legato_protocol.wire.demand import WaitCause
from legato_simulator.engine.fluid.dispatcher import Dispatcher
from legato_simulator.engine.fluid.simulated_worker import SimulatedWorker
from legato_simulator.engine.request import Answers, SimulatedRequest

SAMPLE_AGE = 0.5  # seconds: mean age of a worker's last `Load`


class LengthCounts:
    """Requests and their uncached tokens, in buckets by powers of two."""

    def __init__(self) -> None:
        self._requests: dict[int, int] = {}
        self._tokens: dict[int, int] = {}

    def add(self, tokens: int, sign: int = 1) -> None:
        """Adds a request; `sign` -1 removes it."""
        least = 1 << tokens.bit_length() - 1
        self._requests[least] = self._requests.get(least, 0) + sign
        self._tokens[least] = self._tokens.get(least, 0) + sign * tokens

    def lengths(self) -> tuple[PromptLengths, ...]:
        """Returns the buckets, shortest first."""
        return tuple(PromptLengths(least, n, self._tokens[least]) for least, n in sorted(self._requests.items()) if n)


class ArrivalWindow:
    """Arrivals of the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.counts = LengthCounts()
        self._arrived: deque[tuple[float, int]] = deque()

    def __len__(self) -> int:
        return len(self._arrived)

    def add(self, now: float, tokens: int) -> None:
        self._arrived.append((now, tokens))
        self.counts.add(tokens)

    def forget(self, now: float) -> None:
        """Forgets older arrivals."""
        while self._arrived and self._arrived[0][0] <= now - self.seconds:
            self.counts.add(self._arrived.popleft()[1], -1)


class Telemetry:
    """Signals of one service, which was idle before the beginning of the workload."""

    def __init__(self, answers: Answers) -> None:
        self.recent = ArrivalWindow(RECENT)
        self._answers = answers
        self._newest = ArrivalWindow(NEWEST)
        self._minute = ArrivalWindow(WINDOW)
        self._waiting = LengthCounts()  # requests without a first token
        self._expected: dict[SimulatedRequest, int] = {}  # their tokens in `_waiting`
        self._outputs: deque[tuple[float, int]] = deque()
        self._head_wait: deque[tuple[float, WaitCause, float]] = deque()
        self._updated = 0.0

    def arrive(self, request: SimulatedRequest, now: float) -> None:
        for window in (self._newest, self.recent, self._minute):
            window.add(now, request.uncached)
        self._waiting.add(request.uncached)
        self._expected[request] = request.uncached

    def stop_waiting(self, request: SimulatedRequest) -> None:
        """Removes a request that has its first token, or never will."""
        tokens = self._expected.pop(request, 0)
        if tokens:
            self._waiting.add(tokens, -1)

    def finish(self, request: SimulatedRequest, now: float) -> None:
        self._outputs.append((now, request.arrival.output))
        self._answers.add(request.arrival.output)

    def update(self, dispatcher: Dispatcher, now: float) -> None:
        """Forgets old events, and counts the wait of the first queued request. Called once for every decision."""
        if dispatcher.queue:
            waited = min(now - self._updated, now - dispatcher.queue[0].arrival.at)
            self._head_wait.append((now, dispatcher.obstacle, waited))
        self._updated = now
        for window in (self._newest, self.recent, self._minute):
            window.forget(now)
        while self._outputs and self._outputs[0][0] <= now - WINDOW:
            self._outputs.popleft()
        while self._head_wait and self._head_wait[0][0] <= now - WINDOW:
            self._head_wait.popleft()

    def signals(self, workers: Iterable[SimulatedWorker], dispatcher: Dispatcher, now: float) -> Signals:
        """Returns the operator's signals."""
        traffic = Traffic(
            seconds=WINDOW,
            arrivals=self._minute.counts.lengths(),
            recent_seconds=RECENT,
            recent=self.recent.counts.lengths(),
            waiting=self._waiting.lengths(),
            queued=len(dispatcher.queue),
            queued_tokens=dispatcher.queued_tokens,
            queued_prompt_tokens=round(sum(request.known for request in dispatcher.queue)),
            output=_output([tokens for _, tokens in self._outputs]),
            head_wait=self._causes(),
            newest_seconds=NEWEST,
            newest=self._newest.counts.lengths(),
        )
        return Signals(tuple(self._worker(worker, now) for worker in workers), traffic)

    def _causes(self) -> dict[WaitCause, float]:
        causes: dict[WaitCause, float] = {}
        for _, cause, seconds in self._head_wait:
            causes[cause] = causes.get(cause, 0.0) + seconds
        return causes

    def _worker(self, worker: SimulatedWorker, now: float) -> WorkerSignals:
        """Returns a worker's signals. It knows the cost of steps once it has computed some."""
        kind, age, draining = worker.kind, now - worker.created, worker.draining_since is not None
        if not worker.serves(now):
            return WorkerSignals(worker.name, worker.pool, False, draining, age)
        decodes = worker.pool == "decode"
        prompts, prompt_tokens = worker.new_prompts(now)
        return WorkerSignals(
            worker.name,
            worker.pool,
            ready=True,
            draining=draining,
            age=age,
            start_seconds=kind.start,
            sample_age=SAMPLE_AGE,
            queue_tokens=worker.queue_tokens(now),
            parked_tokens=0,
            prefill_cost=prefill_cost(worker) if worker.has_prefilled else None,
            decode_cost=decode_cost(worker) if worker.has_decoded else None,
            blocks=self._blocks(worker) if decodes else None,
            running=worker.running if decodes else 0,
            waiting=worker.waiting if decodes else worker.prompts,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            slots=kind.slots if decodes else None,
            context_tokens=round(worker.rows.context) if decodes else 0,
        )

    def _blocks(self, worker: SimulatedWorker) -> Blocks:
        size = worker.kind.block_size
        used, total = math.ceil(worker.used / size), worker.kind.kv_tokens // size
        granted, growth = math.ceil(worker.reserved_tokens / size), math.ceil(worker.growth(self._answers) / size)
        return Blocks(max(0, total - used), 0, used, granted=granted, growth=growth, size=size)


def prefill_cost(worker: SimulatedWorker) -> PrefillCost:
    """Returns the reported cost of prefill. The fixed cost of a full step is distributed over its tokens."""
    kind, times, error = worker.kind, worker.kind.times, worker.kind.rate_error
    per_token = times.per_token + times.per_step / kind.chunk_tokens
    return PrefillCost(per_token / error, times.per_pair / error, times.per_step / error, kind.chunk_tokens)


def decode_cost(worker: SimulatedWorker) -> DecodeCost:
    """Returns the profile's cost of decoding, for each token of a sequence."""
    times = worker.times
    return DecodeCost(times.per_step, times.per_row, times.per_context)


def _output(tokens: Sequence[int]) -> OutputLengths | None:
    if not tokens:
        return None
    mean = sum(tokens) / len(tokens)
    return OutputLengths(mean, math.sqrt(sum([(each - mean) ** 2 for each in tokens]) / len(tokens)))
