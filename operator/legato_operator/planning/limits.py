"""How many workers each pool gets: the desired number, within the bounds, the ratio and the GPU budget. Pure.

The same for every `scaling.mode`. Minima come first: `rules` refuses a spec whose minima cannot be kept together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legato_operator.api import pool_sizes, quantities, roles
from legato_operator.api.resources import Spec

BUDGET = "scaling.gpuBudget"


@dataclass(frozen=True)
class PoolTarget:
    """`replicas` to create, and, where that is not the desired number, the field that limits it."""

    replicas: int
    capped_by: str = ""


Targets = dict[str, PoolTarget]


def targets(spec: Spec, desired: Mapping[str, int], gpu_resources: Sequence[str] = (quantities.GPU,)) -> Targets:
    """What each pool gets."""
    wishes = {pool: desired.get(pool, roles.initial_replicas(spec, pool)) for pool in roles.with_pool(spec)}
    bounded = {pool: _within_bounds(spec, pool, wish) for pool, wish in wishes.items()}
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
    """The larger pool is limited, down to its minimum; from there on the smaller one grows instead."""
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
    """What the smallest pools leave is dealt out one by one: to decode first, and to prefill where that cannot grow.

    Decode first, since its workers can prefill themselves, while prefill workers alone serve nobody.
    """
    if spec.scaling.gpu_budget is None:
        return sizes
    wishes = {pool: target.replicas for pool, target in sizes.items()}
    each = {pool: roles.gpus(spec, pool, gpu_resources) for pool in sizes}
    given = {pool: min(least, wishes[pool]) for pool, least in pool_sizes.smallest(spec).items()}
    left = spec.scaling.gpu_budget - sum(count * each[pool] for pool, count in given.items())
    for hoped in (1, 0):  # first as if an empty pool were to get a worker, then as if it stayed empty
        while grown := _grown(spec, given, wishes, {pool: left // each[pool] for pool in sizes if each[pool]}, hoped):
            pool, more = grown
            given[pool] += more
            left -= more * each[pool]
    return {pool: sizes[pool] if given[pool] == wishes[pool] else PoolTarget(given[pool], BUDGET) for pool in sizes}


def _grown(
    spec: Spec, given: Mapping[str, int], wishes: Mapping[str, int], room: Mapping[str, int], hoped: int
) -> tuple[str, int] | None:
    """The pool that is next to grow and by how many workers: one, or as many as an empty pool needs for the ratio."""
    for pool, count in given.items():
        other = pool_sizes.other(pool)
        beside = given.get(other, 0)
        more = 1 if count or not beside else max(1, math.ceil(beside / pool_sizes.per_other(spec, other)))
        allowed = pool_sizes.keeps_ratio(spec, pool, count + more, max(beside, hoped) if wishes.get(other) else 0)
        if count + more <= wishes[pool] and more <= room.get(pool, more) and allowed:
            return pool, more
    return None
