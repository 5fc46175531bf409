"""NVIDIA Dynamo's planner in its `load` mode: thresholds on queued prefill tokens and KV usage, one worker at a time.

After https://docs.nvidia.com/dynamo/latest/components/planner/planner-guide and
https://github.com/ai-dynamo/dynamo/blob/main/components/src/dynamo/planner/core/load_scaling.py: every 5 s a pool gets
one more worker if any worker is above the upper threshold, and loses one if all are below the lower threshold. While a
worker starts or leaves, nothing changes. The lower thresholds are 0.1 and 0.6 of the upper ones, as in its defaults.
"""

import math
from collections.abc import Iterable, Mapping

from legato_operator.policy import WorkerSignals
from legato_simulator.baselines.baseline import Baseline, Grid
from legato_simulator.baselines.search_context import SearchContext, spread
from legato_simulator.engine.scaler import Observation

EVERY = 5.0  # seconds between decisions
PREFILL_DOWN, DECODE_DOWN = 0.1, 0.6  # lower thresholds, relative to the upper ones


class Dynamo:
    """Upper thresholds per worker: queued prompt tokens, and KV usage including pending sequences."""

    name = "dynamo"

    def __init__(self, prefill: float, decode: float) -> None:
        self._thresholds = {"prefill": (prefill, prefill * PREFILL_DOWN), "decode": (decode, decode * DECODE_DOWN)}
        self._next = -math.inf

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        if seen.now < self._next:
            return dict(seen.sizes)
        self._next = seen.now + EVERY
        return {pool: self._size(seen, pool, size) for pool, size in seen.sizes.items()}

    def _size(self, seen: Observation, pool: str, size: int) -> int:
        if seen.ready.get(pool, 0) != size:
            return size
        load = _queued if pool == "prefill" else _used
        loads = list(_known(load(w) for w in seen.signals.workers if w.pool == pool and w.ready and not w.draining))
        upper, lower = self._thresholds[pool]
        if any(value >= upper for value in loads):
            return size + 1
        return size - 1 if size > 1 and loads and all(value < lower for value in loads) else size


def _queued(worker: WorkerSignals) -> float | None:
    return worker.queue_tokens


def _used(worker: WorkerSignals) -> float | None:
    blocks = worker.blocks
    return (blocks.used + blocks.pending) / max(1, blocks.total) if blocks else None


def _known(values: Iterable[float | None]) -> Iterable[float]:
    return (value for value in values if value is not None)


def _grids(context: SearchContext) -> tuple[Grid, ...]:
    prefill = tuple(context.ttft * context.peak_prefill * share for share in spread(0.05, 2.0, 8))
    decode = tuple(context.full * share for share in spread(0.15, 1.1, 8))
    return (Grid(prefill, decode, Dynamo),)


BASELINE = Baseline("dynamo", "thresholds on queue tokens and KV usage, as Dynamo's planner", _grids)
