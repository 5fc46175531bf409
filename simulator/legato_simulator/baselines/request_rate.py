"""Requests per second through a HorizontalPodAutoscaler: the usual way to scale a service by its traffic.

The metric is `rate(requests[1m])` over all workers, with a target per worker; see
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale-walkthrough/ on metrics of an Ingress.
"""

from collections.abc import Mapping

from legato_simulator.baselines.averages import MovingAverage
from legato_simulator.baselines.baseline import Baseline, Grid, Make
from legato_simulator.baselines.hpa import HorizontalPodAutoscaler, HpaBehavior
from legato_simulator.baselines.search_context import SearchContext, spread
from legato_simulator.engine.scaler import Observation

OVER = 60.0  # seconds over which the rate is averaged
UTILISATION = spread(0.25, 1.4, 8)  # of a worker's capacity


class RequestRate:
    """Target requests per second per worker of each pool: one HorizontalPodAutoscaler for each, on the same metric."""

    name = "request-rate"

    def __init__(self, prefill: float, decode: float) -> None:
        self.targets = {"prefill": prefill, "decode": decode}
        self._rate = MovingAverage(OVER)
        self._scalers = {pool: HorizontalPodAutoscaler(HpaBehavior()) for pool in self.targets}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        rate = self._rate.add(seen.now, seen.requests)
        return {
            pool: self._scalers[pool].size(seen.now, size, rate, self.targets[pool])
            for pool, size in seen.sizes.items()
        }


def grid(context: SearchContext, make: Make) -> Grid:
    """Returns a grid of target rates."""
    prefill, decode = (
        tuple(rate * share for share in UTILISATION) for rate in (context.prefill_rate, context.decode_rate)
    )
    return Grid(prefill, decode, make)


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    return (grid(context, RequestRate),)


BASELINE = Baseline("request-rate", "requests per second, by HPA", _grids)
