"""Keeps the pods of both pools within the GPU budget at every moment: starting, surging and draining ones too. Pure.

`limits` says how many workers there are to be in the end; here it is decided what may start now, beside what there is.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from legato_operator.api import pool_sizes, roles
from legato_operator.api.resources import Spec
from legato_operator.manifests import devices
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning.actions import Apply
from legato_operator.planning.pool_plan import PoolPlan
from legato_operator.planning.revisions import Revisions
from legato_operator.planning.rollout import RollingUpdate, Standing, configured

RollingUpdates = dict[str, RollingUpdate]  # by pool


@dataclasses.dataclass(frozen=True)
class GpuBudget:
    """Of one service. `total` is None where there is none."""

    total: int | None
    names: Sequence[str]  # of the resources that are GPUs

    def held(self, pods: Sequence[Pod]) -> int:
        """GPUs of pods that have not ended. What is lost with its node holds none that could be used."""
        return sum(devices.gpus(pod.devices, self.names) for pod in pods if not (pod.failed or pod.lost))

    def of(self, start: Apply) -> int:
        """GPUs of a pod that is to start."""
        return devices.gpus(devices.of(start.item["spec"]), self.names)


def bounds(
    observed: Observed, budget: GpuBudget, found: Mapping[str, Revisions], at: Mapping[str, Standing]
) -> RollingUpdates:
    """How far each pool may be from its size during a rollout: only the GPUs that no target needs are for a surge.

    Decode has them first. A pool that gets none gives a worker up before the next one starts.
    """
    spec = observed.service.spec
    every = {pool: configured(spec.rollout, standing.target) for pool, standing in at.items()}
    if budget.total is None:
        return every
    each = {pool: _largest(observed, budget, pool, found[pool]) for pool in at}
    others = [pod for pod in observed.pods if pod.pool not in at]
    free = budget.total - budget.held(others) - sum(at[pool].target * each[pool] for pool in at)
    result = {}
    for pool in roles.with_pool(spec):
        usual = result[pool] = every[pool]
        if at[pool].old.total and each[pool]:
            surge = min(usual.surge, max(0, free) // each[pool])
            free -= surge * each[pool]
            result[pool] = RollingUpdate(surge, usual.unavailable if surge else max(1, usual.unavailable))
    return result


def is_stuck(observed: Observed, at: Mapping[str, Standing], plans: Mapping[str, PoolPlan]) -> bool:
    """Whether old workers hold the GPUs of new ones, and nothing that moves will free any.

    So it is where old workers have more GPUs than new ones, of which there are to be more.
    """
    if any(pod.pool in roles.BOTH and pod.pool not in at for pod in observed.pods):
        return False  # a pool that the spec no longer has goes
    if any(made.start or made.recall or made.leave or made.leaving for made in plans.values()):
        return False
    return any(made.held_back for made in plans.values()) and not any(pool.new.starting for pool in at.values())


def one_less(at: Mapping[str, Standing], usual: RollingUpdates) -> RollingUpdates:
    """Bounds by which one old worker goes, of prefill if it has any: decode workers can prefill themselves."""
    for pool in (roles.PREFILL, roles.DECODE):
        if pool in at and (old := at[pool].old.total):
            missing = at[pool].target - old - at[pool].new.total
            return {**usual, pool: RollingUpdate(usual[pool].surge, max(usual[pool].unavailable, missing + 1))}
    return usual


def _largest(observed: Observed, budget: GpuBudget, pool: str, revisions: Revisions) -> int:
    """Most GPUs of any of a pool's workers, of those that are to start as well."""
    templates = [template for template in (revisions.template, revisions.good) if template is not None]
    planned = [devices.gpus(devices.of(template["spec"]), budget.names) for template in templates]
    return max([*planned, *(budget.held([pod]) for pod in observed.of_pool(pool))])


def admit(
    observed: Observed, budget: GpuBudget, plans: Mapping[str, PoolPlan]
) -> tuple[dict[str, PoolPlan], tuple[Apply, ...]]:
    """The plans with those starts for which there are GPUs now, and these starts in the order to take them in.

    Pools below their minimum come first, and decode before prefill. None breaks the ratio, also for a moment.
    """
    room = math.inf if budget.total is None else budget.total - budget.held(observed.pods)
    needs = {pool: [budget.of(start) for start in made.start] for pool, made in plans.items()}
    counts = {pool: made.staying for pool, made in plans.items()}
    targets = {pool: made.target for pool, made in plans.items()}
    order = starting_order(observed.service.spec, needs, counts, targets, room)
    waiting = {pool: iter(made.start) for pool, made in plans.items()}
    starts = tuple(next(waiting[pool]) for pool in order)
    left = {pool: len(made.start) - order.count(pool) for pool, made in plans.items()}
    return {pool: made.holding_back(left[pool]) for pool, made in plans.items()}, starts


def starting_order(
    spec: Spec, needs: Mapping[str, Sequence[int]], counts: Mapping[str, int], targets: Mapping[str, int], room: float
) -> tuple[str, ...]:
    """Which pool may start its next worker, again and again, as long as there is room for one and the ratio allows it.

    `needs` are the GPUs of each that is to start, by pool; `counts` the workers that stay; `room` the GPUs left.
    """
    order: list[str] = []
    staying, left = dict(counts), {pool: list(each) for pool, each in needs.items()}
    while fitting := [
        pool
        for pool, each in left.items()
        if each and each[0] <= room and _keeps_ratio(spec, pool, targets[pool], staying)
    ]:
        pool = min(fitting, key=lambda pool: (staying[pool] >= roles.bounds(spec, pool).min, pool != roles.DECODE))
        room -= left[pool].pop(0)
        staying[pool] += 1
        order.append(pool)
    return tuple(order)


def _keeps_ratio(spec: Spec, pool: str, target: int, counts: Mapping[str, int]) -> bool:
    """What replaces another, or surges, is beyond its target: it makes no pool larger."""
    beside = counts.get(pool_sizes.other(pool), 0)
    return counts[pool] >= target or pool_sizes.keeps_ratio(spec, pool, counts[pool] + 1, beside)
