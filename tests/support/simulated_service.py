"""Builders for simulated services: a profile with round numbers, manifests without bounds to speak of, workloads."""

from typing import Any

from known_signals import spec as known_spec

from legato_cli.simulation.engine import RunSettings
from legato_cli.simulation.fluid import FluidEngine
from legato_cli.simulation.scaler import LegatoScaler
from legato_cli.simulation.workload import Arrival, Workload
from legato_engine.runner.profile import Profile, StepTimes
from legato_operator.api.resources import Spec


class SteadyScaler:
    """Wishes what it is told to from some times on, the first of them 0."""

    name = "steady"

    def __init__(self, *wishes: tuple[float, dict[str, int]]) -> None:
        self._wishes = wishes

    def sizes(self, seen):
        return next(sizes for since, sizes in reversed(self._wishes) if seen.now >= since)


def profile(kv_tokens: int = 64_000, start: float = 30.0, **step: float) -> Profile:
    """A step takes 10 ms, and 0.1 ms for each row and prompt token."""
    times = {"per_step": 0.01, "per_row": 0.0001, "per_context": 0.0, "per_token": 0.0001, "per_pair": 0.0, **step}
    return Profile("round numbers", StepTimes(**times), kv_tokens, start)


def steady(seconds: float, each: float = 0.1, tokens: int = 2000, since: float = 0.0, output: int = 20):
    """Requests at even distances."""
    return [Arrival(since + each * number, tokens, output) for number in range(round(seconds / each))]


def workload(*parts: list[Arrival]) -> Workload:
    """All of them in order of time."""
    return Workload("made", tuple(sorted((each for part in parts for each in part), key=lambda arrival: arrival.at)))


def engine(arrivals: Workload, scaler: Any = None, spec: Spec | None = None, **given: Any) -> FluidEngine:
    """With Legato's scaler, if none is given."""
    spec = spec or known_spec(largest=50)
    given = {"profile": profile(), **given}
    return FluidEngine(RunSettings(spec, arrivals, given.pop("profile"), **given), scaler or LegatoScaler(spec))
