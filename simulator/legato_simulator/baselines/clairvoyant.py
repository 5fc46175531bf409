"""A plan that knows every request in advance: a bound that no autoscaler can be expected to reach.

Each slot of 30 s has the prefill work that arrives in it (seconds of one worker, without the tokens that an unlimited
cache would hold) and the sequences that decode in it (each for its output, at the objective's step time). Sizes are
work ÷ (time × utilisation) and sequences ÷ (sequences of a full worker × utilisation), requested one start time ahead.
The two utilisations are tuned like a baseline's settings, so this is the cheapest plan of its family, not a proven
minimum.
"""

import math
from collections.abc import Mapping
from functools import partial

from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.search_context import SearchContext, spread
from legato_simulator.engine.scaler import Observation

SLOT = 30.0  # seconds


Plan = tuple[tuple[float, float], ...]  # prefill and decode workers per slot, at full utilisation


class Clairvoyant:
    """The utilisation of each pool. `ahead` are the seconds that a worker takes to start."""

    name = "clairvoyant"

    def __init__(self, prefill: float, decode: float, plan: Plan, ahead: float) -> None:
        self._prefill, self._decode, self._plan, self._ahead = prefill, decode, plan, ahead

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        first, last = int(seen.now // SLOT), int((seen.now + self._ahead) // SLOT)
        coming = self._plan[first : last + 1] or ((0.0, 0.0),)
        needed = {
            "prefill": max(slot[0] for slot in coming) / self._prefill,
            "decode": max(slot[1] for slot in coming) / self._decode,
        }
        return {pool: math.ceil(needed[pool]) for pool in seen.sizes}


def plan(context: SearchContext) -> Plan:
    """Returns the number of workers of both pools that each slot keeps busy."""
    arrivals = context.workload.arrivals
    slots = int(arrivals[-1].at // SLOT) + 1
    prefill, decode = [0.0] * slots, [0.0] * slots
    for arrival, tokens in zip(arrivals, context.uncached, strict=True):
        slot = int(arrival.at // SLOT)
        prefill[slot] += context.prefill_seconds(tokens, arrival.prompt - tokens) / SLOT
        _spread_over(decode, arrival.at, arrival.output * context.tpot, 1 / context.rows)
    return tuple(zip(prefill, decode, strict=True))


def _spread_over(slots: list[float], begin: float, seconds: float, workers: float) -> None:
    """Adds `workers` for `seconds` from `begin`, as means of the slots."""
    end = begin + seconds
    for slot in range(int(begin // SLOT), min(len(slots), int(end // SLOT) + 1)):
        overlap = min(end, (slot + 1) * SLOT) - max(begin, slot * SLOT)
        slots[slot] += workers * overlap / SLOT


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    make = partial(Clairvoyant, plan=plan(context), ahead=context.profile.start_seconds)
    return (Grid(spread(0.2, 1.1, 8), spread(0.3, 3.0, 8), make),)


BASELINE = Baseline("clairvoyant", "knows all requests in advance", _grids)
