"""Builders for simulated services: a profile with round numbers, manifests without bounds to speak of, workloads."""

from typing import Any

from known_signals import spec as known_spec

from legato_engine.runner.profile import Profile, StepTimes
from legato_operator.api.resources import Spec
from legato_simulator.engine.engine import RunSettings
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.scaler import LegatoScaler
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledWorker
from legato_simulator.engine.simulated_pod import WorkerKind
from legato_simulator.simulator import ENGINES
from legato_simulator.workload.workload import Arrival, Workload


class SteadyScaler:
    """Wants these sizes from some times on, the first of them 0."""

    name = "steady"

    def __init__(self, *sizes: tuple[float, dict[str, int]]) -> None:
        self._sizes = sizes

    def sizes(self, seen):
        return next(sizes for since, sizes in reversed(self._sizes) if seen.now >= since)


ONE = SteadyScaler((0.0, {"prefill": 1, "decode": 1}))


def profile(kv_tokens: int = 64_000, start: float = 30.0, acceptance: float = 0.0, **step: float) -> Profile:
    """A step takes 10 ms, and 0.1 ms for each row and prompt token."""
    times = {"per_step": 0.01, "per_row": 0.0001, "per_context": 0.0, "per_token": 0.0001, "per_pair": 0.0, **step}
    return Profile("round numbers", StepTimes(**times), kv_tokens, start, acceptance=acceptance)


KIND = WorkerKind(profile().step, 64_000, 512, 16, 0.1, 4, 512, start=30.0)  # at most 4 sequences decode


def steady(seconds: float, each: float = 0.1, tokens: int = 2000, since: float = 0.0, output: int = 20):
    return [Arrival(since + each * number, tokens, output) for number in range(round(seconds / each))]


def workload(*parts: list[Arrival]) -> Workload:
    """All of them in order of time."""
    return Workload("made", tuple(sorted((each for part in parts for each in part), key=lambda arrival: arrival.at)))


def engine(arrivals: Workload, scaler: Any = None, spec: Spec | None = None, kind: str = "fluid", **given: Any):
    """An engine of one of `ENGINES`, with Legato's scaler if none is given."""
    spec = spec or known_spec(largest=50)
    given = {"profile": profile(), **given}
    return ENGINES[kind](RunSettings(spec, arrivals, given.pop("profile"), **given), scaler or LegatoScaler(spec))


def serve(*arrivals: Arrival, scaler: Any = ONE, **given: Any):
    """The engine after its run, which left nothing in any worker, the result, and every request that ended."""
    made = engine(workload(list(arrivals)), scaler, **given)
    ended: list[SimulatedRequest] = []
    made.tally.finish = lambda request, end=made.tally.finish: (ended.append(request), end(request))
    result = made.run()
    for worker in made.pods.all:
        assert worker.idle
        if isinstance(worker, ScheduledWorker):
            worker.scheduler.check_integrity()
            assert worker.scheduler.idle
            assert worker.blocks.counts().used == 0
        else:
            assert worker.backlog == 0
            assert abs(worker.used) < 1e-6
    return made, result, ended
