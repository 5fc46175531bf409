"""llm-d's token-aware scaling: seconds of prefill backlog and KV occupancy, through KEDA.

After https://github.com/llm-d/llm-d/tree/main/guides/workload-autoscaling/keda-epp-token-aware: the number of prefill
workers is backlog tokens ÷ peak prefill throughput of a worker ÷ tolerated seconds, the number of decode workers the
sum of their KV usage ÷ the tolerated usage. KEDA polls every 15 s and hands both to a HorizontalPodAutoscaler. The
guide adds one worker in 180 s and removes one in 300 s (`gradual`); Kubernetes' own policies are tried as well.
"""

from collections.abc import Mapping
from functools import partial

from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.hpa import HorizontalPodAutoscaler, HpaBehavior, HpaPolicy
from legato_simulator.baselines.search_context import SearchContext, spread
from legato_simulator.engine.scaler import Observation

GRADUAL = HpaBehavior(up=(HpaPolicy(180, workers=1),), down=(HpaPolicy(300, workers=1),))


class LlmD:
    """Targets per worker: seconds of backlog in the prefill pool, KV usage in the decode pool.

    `peak_prefill` are the tokens per second of one worker.
    """

    name = "llm-d"

    def __init__(self, prefill: float, decode: float, peak_prefill: float, behavior: HpaBehavior) -> None:
        self._prefill, self._decode, self._peak_prefill = prefill, decode, peak_prefill
        self._scalers = {pool: HorizontalPodAutoscaler(behavior) for pool in ("prefill", "decode")}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        metrics = {
            "prefill": (seen.queue_tokens / self._peak_prefill, self._prefill),
            "decode": (seen.kv_usage * seen.ready.get("decode", 0), self._decode),
        }
        return {pool: self._scalers[pool].size(seen.now, size, *metrics[pool]) for pool, size in seen.sizes.items()}


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    prefill = tuple(context.ttft * share for share in spread(0.03, 1.5, 8))
    decode = tuple(min(0.98, context.full * share) for share in spread(0.15, 1.1, 8))
    return tuple(
        Grid(prefill, decode, partial(LlmD, peak_prefill=context.peak_prefill, behavior=behavior))
        for behavior in (GRADUAL, HpaBehavior())
    )


BASELINE = Baseline("llm-d", "seconds of prefill backlog and KV usage, as llm-d with KEDA", _grids)
