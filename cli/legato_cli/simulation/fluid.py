"""The fluid engine: a workload through a service in virtual time, from one event to the next.

Prompts are computed step by step where steps differ; what decodes flows between two events. Same input, same result.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from legato_cli.simulation.dispatch import Dispatcher
from legato_cli.simulation.pods import POOLS, Pods
from legato_cli.simulation.request import DEFAULTS, Answers, SimulatedRequest
from legato_cli.simulation.result import Result
from legato_cli.simulation.rivals.ground import Ground
from legato_cli.simulation.scaler import LegatoScaler, Observation, Scaler
from legato_cli.simulation.simulated_worker import SimulatedWorker, WorkerKind
from legato_cli.simulation.tally import Tally
from legato_cli.simulation.telemetry import Telemetry
from legato_cli.simulation.workload import Arrival, Workload
from legato_engine.runner.profile import Profile
from legato_operator.api import roles
from legato_operator.api.resources import Bounds, Spec
from legato_operator.autoscaling import DECIDE_EVERY

SLOTS = DEFAULTS.max_running
_ENDS = operator.attrgetter("ends")


@dataclass(frozen=True)
class FluidSimulator:
    """A service to be simulated, as often as one likes. Picklable without `progress`.

    Pools begin with the manifest's initial sizes, all of their workers ready.
    """

    spec: Spec
    profile: Profile
    start: float | None = None  # seconds that a worker takes to serve; the profile's if None
    since: float = 0.0  # seconds of the workload from which on results count
    progress: Callable[[float], None] | None = None  # hears of seconds simulated, as they pass

    def simulate(self, workload: Workload, scaler: Scaler) -> Result:
        """One workload under one scaler, which has seen nothing yet."""
        engine = FluidEngine(self.spec, workload, self.profile, scaler, start=self.start, since=self.since)
        return engine.run(self.progress)

    def legato(self) -> Scaler:
        """The operator's decisions."""
        return LegatoScaler(self.spec)

    def ground(self, workload: Workload) -> Ground:
        """Where settings of other scalers are looked for."""
        most: dict[str, int] = {POOLS[pool]: roles.bounds(self.spec, pool).max for pool in roles.of(self.spec)}
        return Ground(workload, self.profile, self.spec.slo.ttft, self.spec.slo.tpot, most, SLOTS)

    def unified(self) -> "FluidSimulator":
        """With one pool of workers that both prefill and decode, as large as both pools may be."""
        scaling = self.spec.scaling
        decode = Bounds(min=scaling.decode.min, max=scaling.prefill.max + scaling.decode.max)
        scaling = scaling.model_copy(update={"prefill": Bounds(min=0, max=0), "decode": decode})
        return dataclasses.replace(self, spec=self.spec.model_copy(update={"scaling": scaling}))


class FluidEngine:
    """One run. Time is in seconds from the beginning of the workload."""

    def __init__(
        self,
        spec: Spec,
        workload: Workload,
        profile: Profile,
        scaler: Scaler,
        *,
        start: float | None = None,
        told: float = 1.0,
        since: float = 0.0,
    ) -> None:
        """`told` is the prefill rate that workers tell ÷ the true one; the others are those of `FluidSimulator`."""
        self._since = since
        self._spec, self._workload, self._scaler = spec, workload, scaler
        self.kind = WorkerKind(
            times=profile.step,
            kv_tokens=profile.kv_tokens,
            chunk_tokens=spec.engine.chunk_tokens,
            block_size=spec.engine.block_size,
            tpot=spec.slo.tpot,
            slots=SLOTS,
            prefix_block=workload.block,
            start=profile.start_seconds if start is None else start,
            told=told,
        )
        self.pods = Pods(spec, self.kind)
        self.tally = Tally(spec.slo, since)
        self._answers = Answers()
        self._dispatcher = Dispatcher(spec, self.pods.all, self._answers, workload.block)
        self._telemetry = Telemetry(self._answers)
        self._open = 0  # requests that neither ended nor were refused
        self._gpu_seconds = 0.0

    def run(self, progress: Callable[[float], None] | None = None) -> Result:
        """The whole workload, and then until every request has ended or its deadline has passed.

        GPU-hours count up to the last arrival, so that they compare however long the rest takes.
        """
        arrivals, at = self._workload.arrivals, 0
        seconds = arrivals[-1].at if arrivals else 0.0
        last, tick = seconds + self._spec.gateway.default_deadline, 0.0
        while at < len(arrivals) or (self._open and tick <= last):
            worker = min(self.pods.all, key=_ENDS, default=None)
            due = min(tick, worker.ends) if worker is not None else tick
            if at < len(arrivals) and arrivals[at].at < tick and arrivals[at].at <= due:
                self._arrive(at, arrivals[at])
                at += 1
            elif worker is not None and worker.ends < tick:
                self._happens(worker, worker.ends)
            else:
                self._look(tick, seconds)
                if progress is not None and tick < seconds:
                    progress(min(DECIDE_EVERY, seconds - tick))
                tick += DECIDE_EVERY
        return self.tally.result(self._scaler.name, self._workload.name, self._gpu_seconds, seconds)

    def _arrive(self, number: int, arrival: Arrival) -> None:
        request, now = SimulatedRequest(number, arrival, arrival.prompt), arrival.at
        self.tally.arrived(request)
        longest, most = arrival.prompt + arrival.output, min(self._spec.model.max_length, self.kind.kv_tokens)
        self._dispatcher.expect(request, now)
        if longest > most or self._dispatcher.refuses(request):
            self.tally.refuse(request)
            return
        self._open += 1
        self._telemetry.arrived(request, now)
        self._dispatcher.hold(request)
        self._dispatcher.dispatch(now)

    def _happens(self, worker: SimulatedWorker, now: float) -> None:
        ended = worker.happens(now)
        for request in ended.prefilled:
            self._prefilled(request, now)
        for request in ended.finished:
            self._finished(request, now)
        for request in ended.preempted:
            self._again(request, now)
        self._dispatcher.dispatch(now)

    def _prefilled(self, request: SimulatedRequest, now: float) -> None:
        """Its first token, or the next one, where it was computed again."""
        decoder = self._dispatcher.decoders.pop(request)
        decoder.release(request)
        if decoder not in self.pods.all:  # it had to be deleted meanwhile
            self._again(request, now)
            return
        request.made += 1
        if request.first is None:
            request.first = now
            self._telemetry.waits_no_more(request)
        if request.made >= request.arrival.output:
            self._finished(request, now)
        else:
            decoder.decode(request, now)

    def _finished(self, request: SimulatedRequest, now: float) -> None:
        request.done = now
        self._open -= 1
        self.tally.ended(request)
        self._telemetry.finished(request, now)

    def _again(self, request: SimulatedRequest, now: float) -> None:
        """It lost its KV: all of it is computed again, before what has not begun."""
        request.known = math.ceil(request.known)
        self._dispatcher.expect(request, now)
        self._dispatcher.hold(request, first=True)

    def _look(self, now: float, end: float) -> None:
        """One look of the operator: decide, plan, act."""
        for worker in self.pods.all:
            worker.estimate_growth(self._answers)
        self._telemetry.look(self._dispatcher, now)
        seen = self.observation(now)
        self.pods.wish(self._scaler.sizes(seen))
        self.tally.wished(now, self.pods.desired)
        if now <= end:
            self.tally.sample(seen, end)
        for worker in self.pods.reconcile(now):
            for request in worker.give_up(now):
                self._lost(request, now)
        for worker in self.pods.all:
            if worker.draining_since is not None:
                self._drain(worker, now)
        for request in self._dispatcher.expire(now):
            self._open -= 1
            self.tally.refuse(request)
            self._telemetry.waits_no_more(request)
        self._dispatcher.dispatch(now)
        counted = min(now + DECIDE_EVERY, end) - max(now, self._since)
        self._gpu_seconds += self.pods.billed * max(0.0, counted)

    def _drain(self, worker: SimulatedWorker, now: float) -> None:
        """Its sequences go where there is room; the others stay as long as they may."""
        for request in worker.evict(now):
            if not self._dispatcher.migrate(request, now):
                worker.decode(request, now)

    def _lost(self, request: SimulatedRequest, now: float) -> None:
        decoder = self._dispatcher.decoders.pop(request, None)
        if decoder is not None:
            decoder.release(request)
        self._again(request, now)

    def observation(self, now: float) -> Observation:
        """What a scaler sees."""
        workers = self.pods.all
        decode = [worker for worker in workers if worker.pool == "decode" and worker.serves(now)]
        prompts = sum(worker.prompts for worker in workers) + len(self._dispatcher.held)
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
        return sum(worker.queue_tokens(now) for worker in self.pods.all) + self._dispatcher.held_tokens
