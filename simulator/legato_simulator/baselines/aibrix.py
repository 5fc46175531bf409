"""AIBrix's Pod Autoscaler (APA): a metric per worker, with a tolerance on each side.

After https://github.com/vllm-project/aibrix/blob/main/pkg/controller/podautoscaler/algorithm/apa.go and its defaults in
`context/context.go`: beyond a tolerance of 10 % the size is multiplied by metric ÷ target, at most doubled or halved;
down only to the highest recommendation of 300 s. The metrics are taken from its examples: requests in flight of
prefill workers, KV cache usage of decode workers.
"""

import math
from collections import deque
from collections.abc import Mapping

from legato_simulator.baselines.averages import MovingAverage
from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.search_context import SearchContext, spread
from legato_simulator.engine.scaler import Observation

EVERY = 10.0  # seconds between decisions
OVER = 30.0  # seconds over which metrics are averaged
TOLERANCE = 0.1
MOST_UP, MOST_DOWN = 2.0, 2.0
COOL_DOWN = 300.0


class Aibrix:
    """Targets per worker: requests in flight in the prefill pool, KV usage in the decode pool."""

    name = "aibrix"

    def __init__(self, prefill: float, decode: float) -> None:
        self._pools = {"prefill": _Pool(prefill), "decode": _Pool(decode)}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        waiting = seen.in_flight.get("prefill", 0) / max(1, seen.ready.get("prefill", 0))
        metrics = {"prefill": waiting, "decode": seen.kv_usage}
        return {pool: self._pools[pool].size(seen.now, size, metrics[pool]) for pool, size in seen.sizes.items()}


class _Pool:
    def __init__(self, target: float) -> None:
        self._target = target
        self._metric = MovingAverage(OVER)
        self._next = -math.inf
        self._recommended: deque[tuple[float, int]] = deque()

    def size(self, now: float, current: int, metric: float) -> int:
        mean = self._metric.add(now, metric)
        if now >= self._next:
            self._next = now + EVERY
            self._recommended.append((now, self._recommendation(current, mean / self._target)))
        while now - self._recommended[0][0] > COOL_DOWN:
            self._recommended.popleft()
        return max(self._recommended[-1][1], min(current, max(size for _, size in self._recommended)))

    def _recommendation(self, current: int, ratio: float) -> int:
        if ratio > 1 + TOLERANCE:
            return min(math.ceil(current * ratio), math.ceil(MOST_UP * current))
        if ratio < 1 - TOLERANCE:
            return max(math.ceil(current * ratio), math.floor(current / MOST_DOWN))
        return current


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    decode = tuple(min(0.98, context.full * share) for share in spread(0.15, 1.1, 8))
    return (Grid(spread(0.2, 6.0, 8), decode, Aibrix),)


BASELINE = Baseline("aibrix", "requests and KV usage per worker, as AIBrix APA", _grids)
