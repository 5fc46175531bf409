"""Limits each pool's desired number of workers to the bounds, the ratio and the GPU budget. Pure.

The limits are the same for every `scaling.mode`. Minima take precedence: `rules` refuses specs whose minima conflict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legato_operator.api import pool_sizes, quantities, roles
from legato_operator.api.resources import Spec

BUDGET = "scaling.gpuBudget"


@dataclass(frozen=True)
class PoolTarget:
    """The number of replicas to create and, if it is not the desired number, the field that limits it."""

    replicas: int
    capped_by: str = ""


Targets = dict[str, PoolTarget]


def targets(spec: Spec, desired: Mapping[str, int], gpu_resources: Sequence[str] = (quantities.GPU,)) -> Targets:
    """Returns each pool's number of workers within all limits."""
    asked = {pool: desired.get(pool, roles.initial_replicas(spec, pool)) for pool in roles.with_pool(spec)}
    bounded = {pool: _within_bounds(spec, pool, count) for pool, count in asked.items()}
    return _within_budget(spec, _within_ratio(spec, bounded), gpu_resources)


def _within_bounds(spec: Spec, pool: str, desired: int) -> PoolTarget:
    bounds = roles.bounds(spec, pool)
    if spec.scaling.mode == "Fixed":
        return PoolTarget(bounds.min)
    if desired > bounds.max:
        return PoolTarget(bounds.max, f"scaling.{pool}.max")
    if desired < bounds.min:
        return PoolTarget(bounds.min, f"scaling.{pool}.min")
    return PoolTarget(desired)


def _within_ratio(spec: Spec, sizes: Targets) -> Targets:
    """Shrinks the larger pool down to its minimum; beyond that, grows the smaller one."""
    for pool, larger in sizes.items():
        other = pool_sizes.other(pool)
        if other not in sizes or pool_sizes.keeps_ratio(spec, pool, larger.replicas, sizes[other].replicas):
            continue
        each, ratio, minimum = pool_sizes.per_other(spec, pool), pool_sizes.RATIOS[pool], roles.bounds(spec, pool).min
        kept = max(each * sizes[other].replicas, minimum)
        needed = math.ceil(kept / each)
        limited = {} if kept == larger.replicas else {pool: PoolTarget(kept, f"scaling.{ratio}")}
        why = f"scaling.{pool}.min with scaling.{ratio}"
        raised = {other: PoolTarget(needed, why)} if needed > sizes[other].replicas else {}
        return {**sizes, **limited, **raised}
    return sizes


def _within_budget(spec: Spec, sizes: Targets, gpu_resources: Sequence[str]) -> Targets:
    """Distributes the GPUs that the smallest pools leave, one worker at a time, to decode before prefill.

    Decode workers come first because they can also prefill; prefill workers without them serve nobody.
    """
    if spec.scaling.gpu_budget is None:
        return sizes
    desired = {pool: target.replicas for pool, target in sizes.items()}
    each = {pool: roles.gpus(spec, pool, gpu_resources) for pool in sizes}
    given = {pool: min(least, desired[pool]) for pool, least in pool_sizes.smallest(spec).items()}
    left = spec.scaling.gpu_budget - sum(count * each[pool] for pool, count in given.items())
    for hoped in (1, 0):  # first assume that an empty pool will get a worker, then that it stays empty
        while grown := _grown(spec, given, desired, {pool: left // each[pool] for pool in sizes if each[pool]}, hoped):
            pool, more = grown
            given[pool] += more
            left -= more * each[pool]
    return {pool: sizes[pool] if given[pool] == desired[pool] else PoolTarget(given[pool], BUDGET) for pool in sizes}


def _grown(
    spec: Spec, given: Mapping[str, int], desired: Mapping[str, int], room: Mapping[str, int], hoped: int
) -> tuple[str, int] | None:
    """Returns the next pool to grow and its number of new workers: one, or what the ratio needs if it is empty."""
    for pool, count in given.items():
        other = pool_sizes.other(pool)
        others = given.get(other, 0)
        more = 1 if count or not others else max(1, math.ceil(others / pool_sizes.per_other(spec, other)))
        allowed = pool_sizes.keeps_ratio(spec, pool, count + more, max(others, hoped) if desired.get(other) else 0)
        if count + more <= desired[pool] and more <= room.get(pool, more) and allowed:
            return pool, more
    return None
