"""Requests per second with a schedule, as for a service whose daily pattern is known.

Like KEDA's cron trigger (https://keda.sh/docs/latest/scalers/cron/) in addition to a trigger on requests per second:
the larger size applies. The schedule is made from the workload itself, so this baseline knows in advance the number of
requests in each 10 minutes, but not their lengths.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.request_rate import UTILISATION, RequestRateScaler
from legato_simulator.baselines.search_context import SearchContext
from legato_simulator.engine.scaler import Observation, Scaler
from legato_simulator.workload.workload import Workload

PERIOD = 600.0  # seconds


@dataclass(frozen=True)
class Schedule:
    """Target requests per second per worker of each pool, and the expected rate in each period."""

    prefill: float
    decode: float
    expected: tuple[float, ...] = ()  # requests per second
    ahead: float = 60.0  # seconds by which the schedule is early, so that workers have started in time

    def scaler(self) -> Scaler:
        return _ScheduleScaler(self)


class _ScheduleScaler:
    name = "schedule"

    def __init__(self, settings: Schedule) -> None:
        self._settings = settings
        self._targets = {"prefill": settings.prefill, "decode": settings.decode}
        self._by_rate = RequestRateScaler(self._targets)

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        expected = max(self._expected(seen.now), self._expected(seen.now + self._settings.ahead))
        by_rate = self._by_rate.sizes(seen)
        return {pool: max(size, math.ceil(expected / self._targets[pool])) for pool, size in by_rate.items()}

    def _expected(self, at: float) -> float:
        period = int(at // PERIOD)
        return self._settings.expected[period] if period < len(self._settings.expected) else 0.0


def expected(workload: Workload) -> tuple[float, ...]:
    """Returns the requests per second of each period."""
    counted = Counter(int(arrival.at // PERIOD) for arrival in workload.arrivals)
    return tuple(counted[period] / PERIOD for period in range(max(counted, default=-1) + 1))


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    prefill, decode = (
        tuple(rate * share for share in UTILISATION) for rate in (context.prefill_rate, context.decode_rate)
    )
    make = partial(Schedule, expected=expected(context.workload), ahead=context.profile.start_seconds)
    return (Grid(prefill, decode, make),)


BASELINE = Baseline("schedule", "requests per second and a schedule", _grids)
