"""Requests per second with a schedule, as for a service whose daily pattern is known.

Like KEDA's cron trigger (https://keda.sh/docs/latest/scalers/cron/) in addition to a trigger on requests per second:
the larger size applies. The schedule is made from the workload itself, so this baseline knows in advance the number of
requests in each 10 minutes, but not their lengths.
"""

import math
from collections import Counter
from collections.abc import Mapping
from functools import partial

from legato_simulator.baselines import request_rate
from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.request_rate import RequestRate
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.scaler import Observation
from legato_simulator.workload.workload import Workload

PERIOD = 600.0  # seconds


class Schedule:
    """Target requests per second per worker of each pool.

    `expected` are the requests per second of each period. The schedule is `ahead` seconds early, so that workers have
    started in time.
    """

    name = "schedule"

    def __init__(self, prefill: float, decode: float, expected: tuple[float, ...], ahead: float) -> None:
        self._expected, self._ahead = expected, ahead
        self._by_rate = RequestRate(prefill, decode)

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        rate = max(self._expected_at(seen.now), self._expected_at(seen.now + self._ahead))
        by_rate = self._by_rate.sizes(seen)
        return {pool: max(size, math.ceil(rate / self._by_rate.targets[pool])) for pool, size in by_rate.items()}

    def _expected_at(self, at: float) -> float:
        period = int(at // PERIOD)
        return self._expected[period] if period < len(self._expected) else 0.0


def expected(workload: Workload) -> tuple[float, ...]:
    """Returns the requests per second of each period."""
    counted = Counter(int(arrival.at // PERIOD) for arrival in workload.arrivals)
    return tuple(counted[period] / PERIOD for period in range(max(counted, default=-1) + 1))


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    make = partial(Schedule, expected=expected(context.workload), ahead=context.profile.start_seconds)
    return (request_rate.grid(context, make),)


BASELINE = Baseline("schedule", "requests per second and a schedule", _grids)
