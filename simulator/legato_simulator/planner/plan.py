"""The search over all layouts, and its result.

A shape's goodput is the rate of requests that meet both objectives of the manifest. The fewest GPUs that reach the
attainment win; of equals, the shape that reaches it at the highest load.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from legato_operator.policy import Slo, Spec, problems
from legato_simulator.baselines.tuning import reaches
from legato_simulator.engine.chunks import chunk_tokens
from legato_simulator.engine.result import Result
from legato_simulator.planner import headroom, sizes
from legato_simulator.planner.estimates import DegreeEstimate, Estimates
from legato_simulator.planner.lockstep import Batch, Search, ShapeTrial, Simulations
from legato_simulator.planner.shape import PoolLayout, PoolShape
from legato_simulator.planner.sizes import Sized, SizeLimits
from legato_simulator.planner.window import PlannedLoad
from legato_simulator.simulator import ServiceSimulator

REFINED = 2  # shapes of each layout whose highest load is searched
NEAR = 1.25  # multiple of the fewest GPUs up to which it is


@dataclass(frozen=True)
class Option:
    """A shape and its result on the workload."""

    shape: PoolShape
    result: Result
    load: float = 0.0  # highest multiple of the workload's rate with enough attainment; 0 if not searched
    stressed: Result | None = None  # at the highest load of the chosen shape

    @property
    def meets(self) -> bool:
        """True if enough requests meet the objectives."""
        return reaches(self.result)


@dataclass(frozen=True)
class ShapePlan:
    """Options, the best first. `refused` are layouts that cannot be simulated, with the reason."""

    load: PlannedLoad
    slo: Slo
    gpus: int  # most GPUs
    options: tuple[Option, ...]
    estimates: Estimates
    refused: Mapping[str, str]
    simulations: int

    @property
    def chosen(self) -> Option:
        return self.options[0]

    def goodput(self, option: Option) -> float:
        """Returns the good requests per second and GPU."""
        return option.result.attainment * self.load.rate / option.shape.gpus

    def best(self, unified: bool) -> Option | None:
        """Returns the best option with one pool, or with two."""
        return next((option for option in self.options if option.shape.layout.unified is unified), None)


@dataclass(frozen=True)
class PoolPlanner:
    """A service, the load, and the most GPUs that a shape may have. `service.objectives` judge requests."""

    service: ServiceSimulator
    load: PlannedLoad
    gpus: int

    @property
    def written(self) -> Spec:
        return self.service.spec

    def layouts(self) -> list[PoolLayout]:
        """Returns one and two pools with all degrees that have a profile."""
        degrees = sorted({self.service.profile.tensor, *(each.tensor for each in self.service.others)})
        return [PoolLayout(prefill, decode) for prefill in (0, *degrees) for decode in degrees]

    def plan(self, batch: Batch, progress: Callable[[], object] = lambda: None) -> ShapePlan:
        """Searches all layouts. Deterministic. `batch` simulates trials with `simulate`."""
        slo = self.written.slo
        simulations, limits = Simulations(batch, progress), SizeLimits(self.gpus, self.allows, self.estimates())
        layouts, refused = self._possible(limits.estimates)
        base = PoolShape(PoolLayout(0, 1), 0, 0, chunk_tokens(self.written), slo.tpot)
        sized = simulations.run([sizes.search(layout, base, limits) for layout in layouts])
        for each in (each for each in sized if each.suffices):
            refused.pop(str(each.layout), None)  # the estimate was wrong
        chosen = [shape for each in sized for shape in _near(each, sized)[:REFINED]]
        loads = simulations.run([headroom.search(shape, slo.tpot, limits) for shape in chosen])
        shapes = {each.shape: each.load for each in loads} | {
            shape: 0.0 for each in sized for shape in _shown(each) if shape not in chosen
        }
        options = self._options(shapes, simulations)
        return ShapePlan(self.load, slo, self.gpus, options, limits.estimates, refused, len(simulations.results))

    def simulate(self, trial: ShapeTrial) -> Result:
        """Simulates a shape."""
        load = self.load.at(trial.load)
        service = dataclasses.replace(self.service, spec=trial.shape.spec(self.written), since=load.since)
        return service.simulate(load.workload, service.legato())

    def allows(self, shape: PoolShape) -> bool:
        """True if the manifest's rules and limits allow the shape."""
        return not problems(shape.spec(self.written))

    def estimates(self) -> Estimates:
        """Returns the estimates of each degree."""
        made = {}
        for layout in (each for each in self.layouts() if each.unified):
            shape = PoolShape(layout, 0, 1, chunk_tokens(self.written), self.written.slo.tpot)
            service = dataclasses.replace(self.service, spec=shape.spec(self.written))
            context, run = service.search_context(self.load.workload), service.run_settings(self.load.workload)
            context = dataclasses.replace(context, since=self.load.since)
            made[layout.decode] = DegreeEstimate(context, self.written.slo, run.longest)
        return Estimates(made)

    def _possible(self, estimates: Estimates) -> tuple[list[PoolLayout], dict[str, str]]:
        """Returns the layouts that fit into the GPUs and the manifest's rules, and the reasons of the others."""
        possible, refused = [], {}
        for layout in self.layouts():
            least = layout.prefill + layout.decode
            shape = PoolShape(layout, min(1, layout.prefill), 1, chunk_tokens(self.written), self.written.slo.tpot)
            broken = problems(shape.spec(self.written))
            if least > self.gpus:
                refused[str(layout)] = f"needs at least {least} GPUs, and there are {self.gpus}"
            elif broken:
                refused[str(layout)] = "; ".join(f"{path}: {message}" for path, message in broken)
            else:
                possible.append(layout)
                if reason := estimates.unmet(layout, sizes.largest_chunk(shape)):
                    refused[str(layout)] = reason
        return possible, refused

    def _options(self, shapes: Mapping[PoolShape, float], simulations: Simulations) -> tuple[Option, ...]:
        """Returns the options in order, with their results under the highest load of the first."""

        def results(load: float) -> dict[PoolShape, Result]:
            trials = [ShapeTrial(shape, load) for shape in shapes]
            (answers,) = simulations.run([_once(trials)])
            return dict(zip(shapes, answers, strict=True))

        usual = results(1.0)
        made = [Option(shape, usual[shape], load) for shape, load in shapes.items()]
        made.sort(key=_rank)
        if not made or not made[0].load:
            return tuple(made)
        stressed = results(made[0].load)
        return tuple(dataclasses.replace(option, stressed=stressed[option.shape]) for option in made)


def _near(sized: Sized, others: Sequence[Sized]) -> tuple[PoolShape, ...]:
    """Returns the best shapes of a layout if they suffice with not many more GPUs than the fewest of all layouts."""
    enough = [each.best[0].gpus for each in others if each.suffices]
    if not sized.suffices or sized.best[0].gpus > NEAR * min(enough) + 1:
        return ()
    return sized.best


def _shown(sized: Sized) -> list[PoolShape]:
    """Returns the best shape of a layout, and the closest one with fewer GPUs."""
    best = sized.best[:1]
    fewer = [shape for shape in sized.tried if best and shape.gpus < best[0].gpus]
    return [*best, *sorted(fewer, key=lambda shape: -sized.tried[shape].attainment)[:1]]


def _once(trials: Sequence[ShapeTrial]) -> Search[Sequence[Result]]:
    return (yield trials)


def _rank(option: Option) -> tuple[float, ...]:
    if option.meets:
        return (0, option.shape.gpus, -option.load)
    return (1, -option.result.attainment, option.shape.gpus)
