"""The gateway in virtual time: which requests start now, and on which workers. The rules are admission's and routing's.

Held requests start in order of arrival, and none overtakes the first. Hand-offs take no time.
"""

import math
from collections import deque
from collections.abc import Sequence

from legato_gateway import policy
from legato_gateway.policy import AdmissionLimits
from legato_operator.policy import Spec
from legato_protocol.demand import WaitCause
from legato_protocol.load import PrefillCoefficients
from legato_simulator.engine.fluid.simulated_worker import SimulatedWorker
from legato_simulator.engine.request import Answers, SimulatedRequest

LIMITS = AdmissionLimits()


class Dispatcher:
    """`workers` is the list of all of them, as it changes."""

    def __init__(self, spec: Spec, workers: Sequence[SimulatedWorker], answers: Answers, prefix_block: int) -> None:
        self._spec, self._workers, self._answers, self._block = spec, workers, answers, prefix_block
        self.held: deque[SimulatedRequest] = deque()
        self.held_tokens = 0  # uncached, as was expected when they were held
        self.decoders: dict[SimulatedRequest, SimulatedWorker] = {}  # where what is being prefilled will decode
        self.obstacle: WaitCause = "prefill"  # what the first held one waits for

    def refuses(self, request: SimulatedRequest) -> bool:
        """Whether the gateway keeps no more."""
        return len(self.held) >= LIMITS.max_held or self.held_tokens + request.uncached > LIMITS.max_held_tokens

    def expect(self, request: SimulatedRequest, now: float) -> None:
        """Sets how many tokens there will be to compute, by the worker that holds most of its prefix."""
        matches = [worker.prefixes.matched(request.arrival.blocks) for worker in self._prefillers(now)]
        self._count(request, max(matches, default=0))

    def hold(self, request: SimulatedRequest, first: bool = False) -> None:
        """It waits, behind all others or, as it ran already, before them."""
        (self.held.appendleft if first else self.held.append)(request)
        self.held_tokens += request.uncached

    def dispatch(self, now: float) -> None:
        """Start as many as can."""
        while self.held and self._start(self.held[0], now):
            pass

    def expire(self, now: float) -> list[SimulatedRequest]:
        """Removes and returns queued requests that have had no token for longer than the deadline."""
        before = now - self._spec.gateway.default_deadline
        expired = [request for request in self.held if max(request.arrival.at, request.progressed) < before]
        for request in expired:
            self.held.remove(request)
            self.held_tokens -= request.uncached
        return expired

    def migrate(self, request: SimulatedRequest, now: float) -> bool:
        """Whether another decode worker took a sequence with its KV."""
        fitting = [worker for worker in self._fitting(request, now) if worker.in_flight < worker.kind.slots]
        if fitting:
            best = min(fitting, key=lambda worker: self._decode_load(worker, request))
            best.growth += self._answers.expected(request.made)
            best.decode(request, now)
        return bool(fitting)

    def _start(self, request: SimulatedRequest, now: float) -> bool:
        prefillers = self._prefillers(now)
        fitting = self._fitting(request, now)
        if not fitting or not prefillers:
            serving = any(worker.takes(now) and worker.pool == "decode" for worker in self._workers)
            self.obstacle = "decode_room" if serving and prefillers else "no_worker"
            return False
        if not self._has_room(request, prefillers, now) and not self._helping(request, prefillers, fitting, now):
            self.obstacle = "prefill"
            return False
        self.held.popleft()
        self.held_tokens -= request.uncached
        prefiller, decoder = self._route(request, prefillers, fitting, now)
        self._count(request, prefiller.prefixes.matched(request.arrival.blocks))
        self.decoders[request] = decoder
        decoder.reserve(request, self._answers)
        prefiller.compute(request, now)
        return True

    def _has_room(self, request: SimulatedRequest, prefillers: Sequence[SimulatedWorker], now: float) -> bool:
        """Whether the shortest queue has."""
        queued, rate = min((worker.queue_tokens(now), worker.rate) for worker in prefillers)
        most = max(LIMITS.min_backlog_tokens / len(prefillers), rate * LIMITS.backlog_seconds)
        return not queued or queued + request.uncached <= most

    def _route(
        self,
        request: SimulatedRequest,
        prefillers: Sequence[SimulatedWorker],
        fitting: Sequence[SimulatedWorker],
        now: float,
    ) -> tuple[SimulatedWorker, SimulatedWorker]:
        """Where it is computed, and where it decodes."""
        if prefillers[0].pool == "decode":
            best = min(fitting, key=lambda w: self._prefill_cost(w, request, now) + self._decode_load(w, request))
            return best, best
        decoder = min(fitting, key=lambda worker: self._decode_load(worker, request))
        if request.known + decoder.backlog < self._spec.routing.local_prefill_below_tokens:
            return decoder, decoder
        prefiller = min(prefillers, key=lambda worker: self._prefill_cost(worker, request, now))
        sooner = self._sooner_local(request, prefillers, fitting, now)
        return (sooner, sooner) if sooner else (prefiller, decoder)

    def _helping(
        self,
        request: SimulatedRequest,
        prefillers: Sequence[SimulatedWorker],
        fitting: Sequence[SimulatedWorker],
        now: float,
    ) -> bool:
        """Whether a decode worker may take a prompt that prefill workers have no room for."""
        behind = self.held_tokens - request.uncached
        if prefillers[0].pool == "decode" or not self._late(request, prefillers, behind, now):
            return False
        separate = min(self._seconds(worker, request, now) for worker in prefillers)
        for worker in fitting:
            queued, rate = worker.queue_tokens(now), worker.rate * self._prompt_share(worker)
            room = rate and (not queued or queued + request.uncached <= rate * LIMITS.backlog_seconds)
            if room and self._seconds_beside(worker, request, now) < separate:
                return True
        return False

    def _sooner_local(
        self,
        request: SimulatedRequest,
        prefillers: Sequence[SimulatedWorker],
        fitting: Sequence[SimulatedWorker],
        now: float,
    ) -> SimulatedWorker | None:
        """A decode worker that computes it sooner, if all prefill workers are busy."""
        busy = all(worker.queue_tokens(now) for worker in prefillers)
        if not busy or not self._late(request, prefillers, self.held_tokens, now):
            return None
        separate = min(self._seconds(worker, request, now) for worker in prefillers)
        times = {worker: self._seconds_beside(worker, request, now) for worker in fitting}
        soonest = min(times, key=times.__getitem__)
        return soonest if times[soonest] < separate else None

    def _late(
        self, request: SimulatedRequest, prefillers: Sequence[SimulatedWorker], behind: float, now: float
    ) -> bool:
        """Whether prefill workers alone would have its first token, or that of who is held with `behind` tokens behind
        it, too late."""
        if self._spec.routing.when_prefill_busy == "Wait":
            return False
        soonest = min(self._seconds(worker, request, now) for worker in prefillers)
        others = behind / sum(worker.rate for worker in prefillers)
        return soonest + others > self._spec.slo.ttft - (now - request.arrival.at if request.first is None else 0.0)

    def _seconds(self, worker: SimulatedWorker, request: SimulatedRequest, now: float) -> float:
        return worker.queue_tokens(now) / worker.rate + self._own_seconds(worker, request)

    def _seconds_beside(self, worker: SimulatedWorker, request: SimulatedRequest, now: float) -> float:
        share = self._prompt_share(worker)
        return self._seconds(worker, request, now) / share if share else math.inf

    def _prompt_share(self, worker: SimulatedWorker) -> float:
        if not worker.in_flight:
            return 1.0
        step = worker.kind.times.seconds(worker.in_flight, int(worker.rows.context), 0, 0)
        return max(0.0, 1 - step / self._spec.slo.tpot)

    def _prefillers(self, now: float) -> list[SimulatedWorker]:
        """Without prefill workers, decode workers prefill, unless the manifest says otherwise."""
        taking = [worker for worker in self._workers if worker.takes(now)]
        found = [worker for worker in taking if worker.pool == "prefill"]
        if found or (self._spec.disaggregated and self._spec.routing.when_prefill_unavailable != "Local"):
            return found
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
        return load + weights.step_time * worker.kind.times.seconds(running + 1, context, 0, 0)

    def _count(self, request: SimulatedRequest, matched: int) -> None:
        """The last known token is always computed, to have logits to sample from."""
        request.computed, request.uncached = 0, max(1, int(request.known) - matched * self._block)
