"""Requests per second with a schedule: what an operator does who knows his day.

As KEDA's cron trigger (https://keda.sh/docs/latest/scalers/cron/) beside one on requests per second: the larger of the
two holds. The schedule is made from the workload itself, so this rival knows in advance how many requests each 10
minutes bring, but not how long they are.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from legato_simulator.baselines.baseline import Grid, Rival
from legato_simulator.baselines.request_rate import UTILISATION, RequestRateScaler
from legato_simulator.baselines.search_context import Ground
from legato_simulator.engine.scaler import Observation, Scaler
from legato_simulator.workload.workload import Workload

PERIOD = 600.0  # seconds


@dataclass(frozen=True)
class Schedule:
    """Requests per second for each worker of a pool, and how many are expected in each period."""

    prefill: float
    decode: float
    expected: tuple[float, ...] = ()  # requests per second
    ahead: float = 60.0  # seconds that the schedule is before its time, so that workers have started

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
    """Requests per second of each period."""
    counted = Counter(int(arrival.at // PERIOD) for arrival in workload.arrivals)
    return tuple(counted[period] / PERIOD for period in range(max(counted, default=-1) + 1))


def _grids(ground: Ground) -> tuple[Grid, ...]:
    prefill, decode = (
        tuple(rate * share for share in UTILISATION) for rate in (ground.prefill_rate, ground.decode_rate)
    )
    make = partial(Schedule, expected=expected(ground.workload), ahead=ground.profile.start_seconds)
    return (Grid(prefill, decode, make),)


RIVAL = Rival("schedule", "requests per second and a schedule", _grids)
