"""The fluid engine: equal steps are one event, and decoding is continuous between two events."""

import math
import operator
from collections.abc import Mapping, Sequence

from legato_simulator.engine.engine import RunSettings, SimulationEngine
from legato_simulator.engine.fluid.dispatcher import Dispatcher
from legato_simulator.engine.fluid.simulated_worker import SimulatedWorker
from legato_simulator.engine.fluid.telemetry import Telemetry
from legato_simulator.engine.pods import Pods
from legato_simulator.engine.request import Answers, SimulatedRequest
from legato_simulator.engine.scaler import Observation, Scaler

_ENDS = operator.attrgetter("ends")


class FluidEngine(SimulationEngine[SimulatedWorker]):
    """Workers compute at the profile's rates, without a scheduler."""

    def __init__(self, run: RunSettings, scaler: Scaler) -> None:
        super().__init__(run, scaler)
        self.pods = Pods(run.spec, self.kinds, SimulatedWorker)
        self._answers = Answers()
        self._dispatcher = Dispatcher(run.spec, self.pods.all, self._answers, run.workload.block)
        self._telemetry = Telemetry(self._answers)
        self._open = 0
        self._next: SimulatedWorker | None = None  # the worker with the next event

    @property
    def open(self) -> int:
        return self._open

    def due(self) -> float:
        self._next = min(self.pods.all, key=_ENDS, default=None)
        return math.inf if self._next is None else self._next.ends

    def step(self) -> None:
        worker = self._next
        assert worker is not None
        now = worker.ends
        changed = worker.end_step(now)
        for request in changed.prefilled:
            self._prefilled(request, now)
        for request in changed.finished:
            self._finished(request, now)
        for request in changed.preempted:
            self._requeue(request, now)
        self._unpark(worker, now)
        worker.begin_step(now)
        self._dispatcher.dispatch(now)

    def arrive(self, request: SimulatedRequest, now: float) -> None:
        arrival = request.arrival
        longest, most = arrival.prompt + arrival.output, self._run.longest
        self._dispatcher.expect(request, now)
        if longest > most or self._dispatcher.refuses(request):
            self.tally.refuse(request)
            return
        self._open += 1
        self._telemetry.arrive(request, now)
        self._dispatcher.enqueue(request)
        self._dispatcher.dispatch(now)

    def on_plan(self, deleted: Sequence[SimulatedWorker], now: float) -> None:
        for worker in deleted:
            for request in worker.give_up(now):
                self._lost(request, now)
        for worker in self.pods.all:
            if worker.draining_since is not None:
                self._drain(worker, now)
                self._unpark(worker, now)
        for request in self._dispatcher.expire(now):
            self._open -= 1
            self.tally.refuse(request)
            self._telemetry.stop_waiting(request)
        self._dispatcher.dispatch(now)

    def _prefilled(self, request: SimulatedRequest, now: float) -> None:
        """Parks the request until there is a slot for it."""
        decoder = self._dispatcher.decoders[request]
        decoder.parked.append(request)
        self._unpark(decoder, now)

    def _unpark(self, worker: SimulatedWorker, now: float) -> None:
        while worker.parked and worker.running < worker.kind.slots:
            self._start_decoding(worker.parked.popleft(), now)

    def _start_decoding(self, request: SimulatedRequest, now: float) -> None:
        """Adds the first token, or the next one if it was computed again, and starts decoding."""
        decoder = self._dispatcher.decoders.pop(request)
        decoder.release(request)
        if decoder not in self.pods.all:  # deleted meanwhile
            self._requeue(request, now)
            return
        request.made += 1
        if request.first is None:
            request.first = now
            self._telemetry.stop_waiting(request)
        if request.made >= request.arrival.output:
            self._finished(request, now)
        else:
            decoder.decode(request, now)

    def _finished(self, request: SimulatedRequest, now: float) -> None:
        request.done = now
        self._open -= 1
        self.tally.finish(request)
        self._telemetry.finish(request, now)

    def _requeue(self, request: SimulatedRequest, now: float) -> None:
        """Queues a request that lost its KV in front of the others, to be computed again."""
        request.known = math.ceil(request.known)
        if request.first is not None:
            request.progressed = now
        self._dispatcher.expect(request, now)
        self._dispatcher.enqueue(request, first=True)

    def _drain(self, worker: SimulatedWorker, now: float) -> None:
        """Moves its sequences to workers with room; the others stay until the drain deadline."""
        for request in worker.evict(now):
            if not self._dispatcher.migrate(request, now):
                worker.decode(request, now)

    def _lost(self, request: SimulatedRequest, now: float) -> None:
        decoder = self._dispatcher.decoders.pop(request, None)
        if decoder is not None:
            decoder.release(request)
        self._requeue(request, now)

    def observation(self, now: float) -> Observation:
        workers = self.pods.all
        self._telemetry.update(self._dispatcher, now)
        decode = [worker for worker in workers if worker.pool == "decode" and worker.serves(now)]
        prompts = sum(worker.prompts + len(worker.parked) for worker in workers) + len(self._dispatcher.queue)
        decoding = sum(worker.in_flight - len(worker.reserved) for worker in workers)
        capacity = sum(worker.kind.kv_tokens for worker in decode)
        return Observation(
            now=now,
            signals=self._telemetry.signals(workers, self._dispatcher, now),
            sizes=dict(self.pods.desired),
            ready=self.pods.ready(now),
            requests=len(self._telemetry.recent) / self._telemetry.recent.seconds,
            in_flight=self._in_flight(prompts, decoding),
            queue_tokens=self._queue_tokens(now),
            kv_usage=min(1.0, sum(worker.used for worker in decode) / capacity) if capacity else 0.0,
        )

    def _in_flight(self, prompts: int, decoding: int) -> Mapping[str, int]:
        if self._spec.disaggregated:
            return {"prefill": prompts, "decode": decoding}
        return {"decode": prompts + decoding}

    def _queue_tokens(self, now: float) -> int:
        return sum(worker.queue_tokens(now) for worker in self.pods.all) + self._dispatcher.queued_tokens
