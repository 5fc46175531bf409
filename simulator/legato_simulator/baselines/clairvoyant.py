"""What one could do who knew every request in advance: a bound that no autoscaler can be expected to reach.

Computed from the workload: for each 30 s, the prefill work that arrives (seconds of one worker, by the profile, without
what an unlimited cache would hold) and the KV tokens of the sequences that will decode then (each for its output at a
step within the objective). Sizes are work ÷ (time × utilisation) and sequences ÷ (those of a full worker ×
utilisation), wished as early as a worker takes to start. The two utilisations are tuned like any rival's settings, so
it has the fewest GPU-hours of this family of plans; it is not a proven minimum.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from legato_simulator.baselines.baseline import Grid, Rival
from legato_simulator.baselines.search_context import Ground, spread
from legato_simulator.engine.scaler import Observation, Scaler

SLOT = 30.0  # seconds


@dataclass(frozen=True)
class Clairvoyant:
    """Parts of a worker's time and room that the plan uses, and the plan: workers for each slot if all were used."""

    prefill: float
    decode: float
    plan: tuple[tuple[float, float], ...] = ()  # prefill and decode
    ahead: float = 60.0  # seconds that a worker takes to start

    def scaler(self) -> Scaler:
        return _ClairvoyantScaler(self)


class _ClairvoyantScaler:
    name = "clairvoyant"

    def __init__(self, settings: Clairvoyant) -> None:
        self._settings = settings

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        settings = self._settings
        first, last = int(seen.now // SLOT), int((seen.now + settings.ahead) // SLOT)
        coming = settings.plan[first : last + 1] or ((0.0, 0.0),)
        needed = {
            "prefill": max(slot[0] for slot in coming) / settings.prefill,
            "decode": max(slot[1] for slot in coming) / settings.decode,
        }
        return {pool: math.ceil(needed[pool]) for pool in seen.sizes}


def plan(ground: Ground) -> tuple[tuple[float, float], ...]:
    """Workers of both pools that each slot keeps busy."""
    arrivals = ground.workload.arrivals
    slots = int(arrivals[-1].at // SLOT) + 1
    prefill, decode = [0.0] * slots, [0.0] * slots
    for arrival, tokens in zip(arrivals, ground.uncached, strict=True):
        slot = int(arrival.at // SLOT)
        prefill[slot] += ground.prefill_seconds(tokens, arrival.prompt - tokens) / SLOT
        _spread_over(decode, arrival.at, arrival.output * ground.tpot, 1 / ground.rows)
    return tuple(zip(prefill, decode, strict=True))


def _spread_over(slots: list[float], begin: float, seconds: float, workers: float) -> None:
    """Adds so many workers for so long, as means of the slots."""
    end = begin + seconds
    for slot in range(int(begin // SLOT), min(len(slots), int(end // SLOT) + 1)):
        overlap = min(end, (slot + 1) * SLOT) - max(begin, slot * SLOT)
        slots[slot] += workers * overlap / SLOT


def _grids(ground: Ground) -> tuple[Grid, ...]:
    make = partial(Clairvoyant, plan=plan(ground), ahead=ground.profile.start_seconds)
    return (Grid(spread(0.2, 1.1, 8), spread(0.3, 3.0, 8), make),)


RIVAL = Rival("clairvoyant", "knows all requests in advance", _grids)
