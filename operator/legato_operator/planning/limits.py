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
    wishes = {pool: desired.get(pool, roles.initial_replicas(spec, pool)) for pool in roles.of(spec)}
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
    while growing := [pool for pool in given if each[pool] <= left and _may_grow(spec, pool, given, wishes)]:
        given[growing[0]] += 1
        left -= each[growing[0]]
    return {pool: sizes[pool] if given[pool] == wishes[pool] else PoolTarget(given[pool], BUDGET) for pool in sizes}


def _may_grow(spec: Spec, pool: str, given: Mapping[str, int], wishes: Mapping[str, int]) -> bool:
    """Towards its wish, and no further than the ratio allows; a pool that is about to get its first worker has one."""
    other = pool_sizes.other(pool)
    beside = max(given[other], 1) if wishes.get(other) else 0
    return given[pool] < wishes[pool] and pool_sizes.keeps_ratio(spec, pool, given[pool] + 1, beside)
