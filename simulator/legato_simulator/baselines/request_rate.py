"""Requests per second through a HorizontalPodAutoscaler: the usual way to scale a service by its traffic.

The metric is `rate(requests[1m])` over all workers, with a target per worker; see
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale-walkthrough/ on metrics of an Ingress.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from legato_simulator.baselines.averages import MovingAverage
from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.hpa import HorizontalPodAutoscaler, HpaBehavior
from legato_simulator.baselines.search_context import SearchContext, spread
from legato_simulator.engine.scaler import Observation, Scaler

OVER = 60.0  # seconds over which the rate is averaged
UTILISATION = spread(0.25, 1.4, 8)  # of a worker's capacity


@dataclass(frozen=True)
class RequestRate:
    """Target requests per second per worker of each pool."""

    prefill: float
    decode: float

    def scaler(self) -> Scaler:
        return RequestRateScaler({"prefill": self.prefill, "decode": self.decode})


class RequestRateScaler:
    """One HorizontalPodAutoscaler for each pool, on the same metric."""

    name = "request-rate"

    def __init__(self, targets: Mapping[str, float]) -> None:
        self._targets = targets
        self._rate = MovingAverage(OVER)
        self._scalers = {pool: HorizontalPodAutoscaler(HpaBehavior()) for pool in targets}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        rate = self._rate.add(seen.now, seen.requests)
        return {
            pool: self._scalers[pool].size(seen.now, size, rate, self._targets[pool])
            for pool, size in seen.sizes.items()
        }


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    prefill, decode = (
        tuple(rate * share for share in UTILISATION) for rate in (context.prefill_rate, context.decode_rate)
    )
    return (Grid(prefill, decode, RequestRate),)


BASELINE = Baseline("request-rate", "requests per second, by HPA", _grids)
