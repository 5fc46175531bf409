"""Requests in flight with a stable and a panic window, as Knative's Pod Autoscaler does.

After https://github.com/knative/serving/blob/main/pkg/autoscaler/scaling/autoscaler.go: the size is the mean of 60 s
divided by the target. If the mean of 6 s asks for twice the ready workers, it panics: for 60 s it follows the shorter
mean and never shrinks. Within one decision a pool at most halves.
"""

import math
from collections.abc import Mapping

from legato_simulator.baselines.averages import MovingAverage
from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.search_context import SearchContext, spread
from legato_simulator.engine.scaler import Observation

STABLE, PANIC = 60.0, 6.0  # seconds
PANIC_THRESHOLD = 2.0  # times the ready workers
MOST_UP, MOST_DOWN = 1000.0, 2.0  # times the ready workers, in one decision


class Concurrency:
    """Target number of requests in flight per worker of each pool."""

    name = "concurrency"

    def __init__(self, prefill: float, decode: float) -> None:
        self._pools = {"prefill": _Pool(prefill), "decode": _Pool(decode)}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        return {
            pool: self._pools[pool].size(seen.now, seen.in_flight.get(pool, 0), seen.ready.get(pool, 0))
            for pool in seen.sizes
        }


class _Pool:
    def __init__(self, target: float) -> None:
        self._target = target
        self._stable, self._panic = MovingAverage(STABLE), MovingAverage(PANIC)
        self._panic_at: float | None = None
        self._highest = 0

    def size(self, now: float, in_flight: int, serving: int) -> int:
        ready = max(1, serving)
        most, least = math.ceil(MOST_UP * ready), math.floor(ready / MOST_DOWN)
        stable = math.ceil(self._stable.add(now, in_flight) / self._target)
        panic = math.ceil(self._panic.add(now, in_flight) / self._target)
        if panic / ready >= PANIC_THRESHOLD:
            self._panic_at = now
        elif self._panic_at is not None and now - self._panic_at > STABLE:
            self._panic_at, self._highest = None, 0
        desired = min(max(stable, least), most)
        if self._panic_at is None:
            return desired
        self._highest = max(self._highest, desired, min(max(panic, least), most))
        return self._highest


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    decode = tuple(context.rows * share for share in spread(0.15, 1.2, 8))
    return (Grid(spread(0.2, 6.0, 8), decode, Concurrency),)


BASELINE = Baseline("concurrency", "requests in flight with a panic window, as Knative", _grids)
