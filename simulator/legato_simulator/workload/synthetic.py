"""Named workloads: a trace, a trace superposed to a day, and synthetic ones in which one property changes.

Synthetic workloads have Poisson arrivals and log-normal lengths. They are deterministic for a seed.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from legato_simulator.workload.traces import BLOCK
from legato_simulator.workload.workload import Arrival, Workload

TRACE = "trace"
SUPERPOSED = "superposed"
_PREFIXES = 32
_SPREAD = 0.6  # standard deviation of the logarithm of lengths
_LONGEST = 8  # multiple of the mean


@dataclass(frozen=True, slots=True)
class SyntheticTraffic:
    """The usual load, which the phases of a synthetic workload multiply."""

    rate: float = 4.0  # requests per second
    prompt: int = 4096  # mean tokens
    output: int = 192
    seconds: float = 3600.0  # of the whole workload


@dataclass(frozen=True, slots=True)
class TrafficPhase:
    """A share of a workload's time, with its load as multiples of the usual one."""

    share: float
    rate: float = 1.0
    prompt: float = 1.0
    output: float = 1.0
    prefix: float = 0.0  # share of each prompt that is one of `_PREFIXES` common prefixes


PHASES: dict[str, tuple[TrafficPhase, ...]] = {
    "steady": (TrafficPhase(1.0),),
    "mix-shift": (TrafficPhase(0.25), TrafficPhase(0.25, prompt=3), TrafficPhase(0.25, prompt=0.5), TrafficPhase(0.25)),
    "decode-shift": (
        TrafficPhase(0.25),
        TrafficPhase(0.25, output=4),
        TrafficPhase(0.25, output=0.5),
        TrafficPhase(0.25),
    ),
    "hit-rate-shift": (
        TrafficPhase(0.25, prefix=0.75),
        TrafficPhase(0.25),
        TrafficPhase(0.25, prefix=0.5),
        TrafficPhase(0.25, prefix=0.75),
    ),
    "step": (TrafficPhase(0.25, rate=0.4), TrafficPhase(0.25, rate=2), TrafficPhase(0.5, rate=0.4)),
    "idle-burst": (TrafficPhase(0.6, rate=0.02), TrafficPhase(0.15, rate=2), TrafficPhase(0.25, rate=0.02)),
}
NAMES = (TRACE, SUPERPOSED, *PHASES)
ABOUT = {
    TRACE: "the trace as it is",
    SUPERPOSED: "copies of the trace, evenly shifted and thinned to a day",
    "steady": "nothing changes",
    "mix-shift": "prompts become 3 times as long, then half as long; as many requests all the time",
    "decode-shift": "answers become 4 times as long, then half as long",
    "hit-rate-shift": "prompts share 3/4 of their tokens, then none, half, and 3/4 again",
    "step": "a sudden step to 5 times as many requests, and back",
    "idle-burst": "hardly any requests, then suddenly 100 times as many",
}


def named(name: str, seed: int, traffic: SyntheticTraffic, trace: Workload | None) -> Workload:
    """Returns the workload of this name. Raises ValueError if it is unknown, or needs a trace without one."""
    if phases := PHASES.get(name):
        return made(name, phases, traffic, seed)
    if name not in NAMES:
        raise ValueError(f"not a workload: {name} ({', '.join(NAMES)})")
    if trace is None:
        raise ValueError(f"workload {name} needs a trace")
    return trace if name == TRACE else superposed(trace, seed)


def made(name: str, phases: tuple[TrafficPhase, ...], traffic: SyntheticTraffic, seed: int) -> Workload:
    """Returns a workload with these phases, one after the other."""
    rng = random.Random(f"{name}/{seed}")
    arrivals: list[Arrival] = []
    begin = 0.0
    for phase in phases:
        end = begin + phase.share * traffic.seconds
        arrivals.extend(_phase(phase, traffic, begin, end, rng))
        begin = end
    return Workload(name, tuple(arrivals), BLOCK)


def superposed(trace: Workload, seed: int, copies: int = 4, day: float = 7200.0, least: float = 0.2) -> Workload:
    """Returns `copies` of a trace, evenly shifted, each repeated for a `day` of seconds.

    A request is kept with a probability that follows a cosine from `least` at midnight to 1 at noon. Each repetition of
    each copy has its own prefixes, so that shared prefixes are as frequent as in the trace.
    """
    rng = random.Random(f"{trace.name}/{seed}")
    period = trace.arrivals[-1].at + 1
    ids = 1 + max((block for arrival in trace.arrivals for block in arrival.blocks), default=0)
    kept: list[Arrival] = []
    for copy in range(copies):
        for repetition in range(-1, math.ceil(day / period)):
            offset = (repetition + copy / copies) * period
            shift = ids * (copy + copies * (repetition + 1))
            for arrival in trace.arrivals:
                at = arrival.at + offset
                if 0 <= at < day and rng.random() < least + (1 - least) * (1 - math.cos(math.tau * at / day)) / 2:
                    blocks = tuple(block + shift for block in arrival.blocks)
                    kept.append(Arrival(at, arrival.prompt, arrival.output, blocks))
    kept.sort(key=lambda arrival: arrival.at)
    return Workload(f"{trace.name}-{SUPERPOSED}", tuple(kept), trace.block)


def _phase(
    phase: TrafficPhase, traffic: SyntheticTraffic, begin: float, end: float, rng: random.Random
) -> Iterator[Arrival]:
    prompts, outputs = _lengths(traffic.prompt * phase.prompt, rng), _lengths(traffic.output * phase.output, rng)
    at = begin + rng.expovariate(traffic.rate * phase.rate)
    while at < end:
        prompt = prompts()
        yield Arrival(at, prompt, outputs(), _prefix(prompt, phase.prefix, rng))
        at += rng.expovariate(traffic.rate * phase.rate)


def _lengths(mean: float, rng: random.Random) -> Callable[[], int]:
    """Returns a function that draws log-normal lengths with a mean of about `mean`."""
    middle = math.log(mean) - _SPREAD**2 / 2
    return lambda: max(1, round(min(rng.lognormvariate(middle, _SPREAD), _LONGEST * mean)))


def _prefix(prompt: int, share: float, rng: random.Random) -> tuple[int, ...]:
    """Returns ids of the shared blocks. The rest of the prompt is not shared, so it needs no ids."""
    which = rng.randrange(_PREFIXES)
    return tuple(which + _PREFIXES * block for block in range(int(prompt * share) // BLOCK))
