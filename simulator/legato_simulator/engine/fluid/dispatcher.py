"""The fluid engine's gateway: starts requests on workers by the rules of admission and routing.

Queued requests start in order of arrival, without backfill. Hand-offs take no time.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from legato_gateway import policy
from legato_gateway.policy import AdmissionLimits
from legato_operator.policy import Spec
from legato_protocol.step_target import STEP_TARGET
from legato_protocol.wire.demand import WaitCause
from legato_protocol.wire.load import PrefillCoefficients
from legato_simulator.engine.fluid.simulated_worker import SimulatedWorker
from legato_simulator.engine.request import Answers, SimulatedRequest

LIMITS = AdmissionLimits()


@dataclass(frozen=True, slots=True)
class _Able:
    """Workers that may compute a request's prompt now, and those with room to decode it."""

    prefill: Sequence[SimulatedWorker]
    decode: Sequence[SimulatedWorker]


class Dispatcher:
    """The queue and the router. `workers` is the live list of all workers."""

    def __init__(self, spec: Spec, workers: Sequence[SimulatedWorker], answers: Answers, prefix_block: int) -> None:
        self._spec, self._workers, self._answers, self._block = spec, workers, answers, prefix_block
        self.queue: deque[SimulatedRequest] = deque()
        self.queued_tokens = 0  # uncached, as expected when they were queued
        self.decoders: dict[SimulatedRequest, SimulatedWorker] = {}  # by request in prefill, its decode worker
        self.obstacle: WaitCause = "prefill"  # cause for which the first queued request waits

    def refuses(self, request: SimulatedRequest) -> bool:
        """Returns True if the queue is full."""
        return len(self.queue) >= LIMITS.max_queued or self.queued_tokens + request.uncached > LIMITS.max_queued_tokens

    def expect(self, request: SimulatedRequest, now: float) -> None:
        """Sets the tokens to compute, given the worker that has most of its prefix."""
        matches = [worker.prefixes.matched(request.arrival.blocks) for worker in self._prefillers(now)]
        self._count(request, max(matches, default=0))

    def enqueue(self, request: SimulatedRequest, first: bool = False) -> None:
        """Queues a request after all others, or before them if it ran already (`first`)."""
        (self.queue.appendleft if first else self.queue.append)(request)
        self.queued_tokens += request.uncached

    def dispatch(self, now: float) -> None:
        """Starts as many queued requests as possible."""
        while self.queue and self._start(self.queue[0], now):
            pass

    def expire(self, now: float) -> list[SimulatedRequest]:
        """Removes and returns queued requests that have had no token for longer than the deadline."""
        before = now - self._spec.gateway.default_deadline
        expired = [request for request in self.queue if max(request.arrival.at, request.progressed) < before]
        for request in expired:
            self.queue.remove(request)
            self.queued_tokens -= request.uncached
        return expired

    def migrate(self, request: SimulatedRequest, now: float) -> bool:
        """Moves a sequence with its KV to another decode worker. Returns False if none has room."""
        fitting = [worker for worker in self._fitting(request, now) if worker.in_flight < worker.kind.slots]
        if fitting:
            best = min(fitting, key=lambda worker: self._decode_load(worker, request))
            best.decode(request, now)
        return bool(fitting)

    def _start(self, request: SimulatedRequest, now: float) -> bool:
        able = _Able(self._prefillers(now), self._fitting(request, now))
        if not able.decode or not able.prefill:
            serving = any(worker.takes(now) and worker.pool == "decode" for worker in self._workers)
            self.obstacle = "decode_room" if serving and able.prefill else "no_worker"
            return False
        if not self._has_room(request, able.prefill, now) and not self._helping(request, able, now):
            self.obstacle = "prefill"
            return False
        self.queue.popleft()
        self.queued_tokens -= request.uncached
        prefiller, decoder = self._route(request, able, now)
        self._count(request, prefiller.prefixes.matched(request.arrival.blocks))
        self.decoders[request] = decoder
        decoder.reserve(request)
        prefiller.compute(request, now)
        return True

    def _has_room(self, request: SimulatedRequest, prefillers: Sequence[SimulatedWorker], now: float) -> bool:
        """Returns True if the shortest queue has room for it."""
        queued, rate = min((worker.queue_tokens(now), worker.rate) for worker in prefillers)
        most = max(LIMITS.min_backlog_tokens / len(prefillers), rate * LIMITS.backlog_seconds)
        return not queued or queued + request.uncached <= most

    def _route(self, request: SimulatedRequest, able: _Able, now: float) -> tuple[SimulatedWorker, SimulatedWorker]:
        """Returns the workers for prefill and decode."""
        if able.prefill[0].pool == "decode":
            best = min(able.decode, key=lambda w: self._prefill_cost(w, request, now) + self._decode_load(w, request))
            return best, best
        decoder = min(able.decode, key=lambda worker: self._decode_load(worker, request))
        if request.known + decoder.backlog < self._spec.routing.local_prefill_below_tokens:
            return decoder, decoder
        prefiller = min(able.prefill, key=lambda worker: self._prefill_cost(worker, request, now))
        sooner = self._sooner_local(request, able, now)
        return (sooner, sooner) if sooner else (prefiller, decoder)

    def _helping(self, request: SimulatedRequest, able: _Able, now: float) -> bool:
        """Returns True if a decode worker may take a prompt for which prefill workers have no room."""
        behind = self.queued_tokens - request.uncached
        if able.prefill[0].pool == "decode" or not self._late(request, able.prefill, behind, now):
            return False
        separate = self._soonest(request, able.prefill, now)
        for worker in able.decode:
            queued, rate = worker.queue_tokens(now), worker.rate * self._prompt_share(worker)
            room = rate and (not queued or queued + request.uncached <= rate * LIMITS.backlog_seconds)
            if room and self._seconds_while_decoding(worker, request, now) < separate:
                return True
        return False

    def _sooner_local(self, request: SimulatedRequest, able: _Able, now: float) -> SimulatedWorker | None:
        """Returns a decode worker that computes it sooner, if all prefill workers are busy."""
        busy = all(worker.queue_tokens(now) for worker in able.prefill)
        if not busy or not self._late(request, able.prefill, self.queued_tokens, now):
            return None
        times = {worker: self._seconds_while_decoding(worker, request, now) for worker in able.decode}
        soonest = min(times, key=times.__getitem__)
        return soonest if times[soonest] < self._soonest(request, able.prefill, now) else None

    def _late(
        self, request: SimulatedRequest, prefillers: Sequence[SimulatedWorker], behind: float, now: float
    ) -> bool:
        """Returns True if prefill workers alone would miss the objective for its first token.

        Requests that are queued after it, with `behind` tokens, count as well.
        """
        if self._spec.routing.when_prefill_busy == "Wait":
            return False
        soonest = self._soonest(request, prefillers, now)
        others = behind / sum(worker.rate for worker in prefillers)
        return soonest + others > self._spec.slo.ttft - (now - request.arrival.at if request.first is None else 0.0)

    def _soonest(self, request: SimulatedRequest, workers: Sequence[SimulatedWorker], now: float) -> float:
        return min(self._seconds(worker, request, now) for worker in workers)

    def _seconds(self, worker: SimulatedWorker, request: SimulatedRequest, now: float) -> float:
        return worker.queue_tokens(now) / worker.rate + self._own_seconds(worker, request)

    def _seconds_while_decoding(self, worker: SimulatedWorker, request: SimulatedRequest, now: float) -> float:
        share = self._prompt_share(worker)
        return self._seconds(worker, request, now) / share if share else math.inf

    def _prompt_share(self, worker: SimulatedWorker) -> float:
        if not worker.in_flight:
            return 1.0
        step = worker.times.seconds(worker.in_flight, int(worker.rows.context), 0, 0)
        return max(0.0, 1 - step / (STEP_TARGET * self._spec.slo.tpot))

    def _prefillers(self, now: float) -> list[SimulatedWorker]:
        """Returns the workers for prefill. Decode workers replace missing prefill workers if the manifest allows it."""
        taking = [worker for worker in self._workers if worker.takes(now)]
        prefillers = [worker for worker in taking if worker.pool == "prefill"]
        if prefillers or (self._spec.disaggregated and self._spec.routing.when_prefill_unavailable != "Local"):
            return prefillers
        return taking

    def _fitting(self, request: SimulatedRequest, now: float) -> list[SimulatedWorker]:
        tokens, answers = request.known, self._answers
        return [w for w in self._workers if w.pool == "decode" and w.takes(now) and w.fits(tokens, answers)]

    def _prefill_cost(self, worker: SimulatedWorker, request: SimulatedRequest, now: float) -> float:
        weight = self._spec.routing.weights.prefix_cache
        return worker.queue_tokens(now) / worker.rate + weight * self._own_seconds(worker, request)

    def _own_seconds(self, worker: SimulatedWorker, request: SimulatedRequest) -> float:
        kind, times = worker.kind, worker.kind.times
        uncached = max(1.0, request.known - worker.prefixes.matched(request.arrival.blocks) * self._block)
        cost = PrefillCoefficients(times.per_step, times.per_token, times.per_pair, kind.chunk_tokens)
        return policy.compute_seconds(cost, request.known, uncached)

    def _decode_load(self, worker: SimulatedWorker, request: SimulatedRequest) -> float:
        fullness = (worker.used + request.known) / worker.kind.kv_tokens
        running, weights = worker.in_flight, self._spec.routing.weights
        load = weights.kv_cache_utilization * fullness**2 + policy.RUNNING_WEIGHT * running
        context = int(worker.rows.context + request.known)
        return load + weights.step_time * worker.times.seconds(running + 1, context, 0, 0)

    def _count(self, request: SimulatedRequest, matched: int) -> None:
        """Sets the tokens to compute. The last known token is always computed, for logits to sample from."""
        request.computed, request.uncached = 0, max(1, int(request.known) - matched * self._block)
