"""Keeps the pods of both pools within the GPU budget at every moment, including starting and draining ones. Pure.

`limits` decides the final number of workers; this module decides which workers may start now.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from legato_operator.api import pool_sizes, roles
from legato_operator.api.resources import Spec
from legato_operator.manifests.pods import devices
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning.actions import Apply
from legato_operator.planning.pools.pool_plan import PoolPlan, plan_pools
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.rolling_update import PoolRollout, RollingUpdate, configured

RollingUpdates = dict[str, RollingUpdate]  # by pool


@dataclasses.dataclass(frozen=True)
class GpuBudget:
    """The GPU budget of one service. `total` is None without a budget."""

    total: int | None
    names: Sequence[str]  # of the resources that are GPUs

    def in_use(self, pods: Sequence[Pod]) -> int:
        """Returns the GPUs of pods that have not ended. GPUs on lost nodes do not count: nobody could use them."""
        return sum(devices.gpus(pod.devices, self.names) for pod in pods if not (pod.failed or pod.lost))

    def needed_by(self, start: Apply) -> int:
        """Returns the GPUs of a pod that is to start."""
        return devices.gpus(devices.requested(start.item["spec"]), self.names)


def plan_within_budget(
    observed: Observed,
    budget: GpuBudget,
    revisions: Mapping[str, Revisions],
    rollouts: Mapping[str, PoolRollout],
    gateway_ready: bool,
) -> tuple[dict[str, PoolPlan], tuple[Apply, ...]]:
    """Plans one step of every pool. Returns the plans with only the starts that have GPUs now, and these starts in
    order."""
    bounds = _bounds(observed, budget, revisions, rollouts)
    pools, starts = _admit(observed, budget, plan_pools(observed, revisions, rollouts, gateway_ready, bounds))
    if not _is_stuck(observed, rollouts, pools):
        return pools, starts
    bounds = _one_less(rollouts, bounds)
    return _admit(observed, budget, plan_pools(observed, revisions, rollouts, gateway_ready, bounds))


def _bounds(
    observed: Observed, budget: GpuBudget, revisions: Mapping[str, Revisions], rollouts: Mapping[str, PoolRollout]
) -> RollingUpdates:
    """Returns each pool's surge and unavailability during a rollout; surges only use GPUs that no target needs.

    Decode gets them first. A pool without a surge gives up a worker before the next one starts.
    """
    spec = observed.service.spec
    every = {
        pool: dataclasses.replace(configured(spec.rollout, rollout.target), most_new=rollout.most_new)
        for pool, rollout in rollouts.items()
    }
    if budget.total is None:
        return every
    each = {pool: _largest(observed, budget, pool, revisions[pool]) for pool in rollouts}
    others = [pod for pod in observed.pods if pod.pool not in rollouts]
    free = budget.total - budget.in_use(others) - sum(rollouts[pool].target * each[pool] for pool in rollouts)
    result = {}
    for pool in roles.with_pool(spec):
        usual = result[pool] = every[pool]
        if rollouts[pool].old.total and each[pool]:
            surge = min(usual.surge, max(0, free) // each[pool])
            free -= surge * each[pool]
            unavailable = usual.unavailable if surge else max(1, usual.unavailable)
            result[pool] = dataclasses.replace(usual, surge=surge, unavailable=unavailable)
    return result


def _is_stuck(observed: Observed, rollouts: Mapping[str, PoolRollout], plans: Mapping[str, PoolPlan]) -> bool:
    """True if old workers occupy the GPUs that new ones need, and nothing under way will free any.

    This happens when old workers have more GPUs each than new ones, and there will be more new ones.
    """
    if any(pod.pool in roles.BOTH and pod.pool not in rollouts for pod in observed.pods):
        return False  # a pool that the spec no longer has is being removed
    if any(rollout.held for rollout in rollouts.values()):
        return False  # the old revision stays while a canary is compared
    if any(made.start or made.recall or made.leave or made.leaving for made in plans.values()):
        return False
    return any(made.held_back for made in plans.values()) and not any(pool.new.starting for pool in rollouts.values())


def _one_less(rollouts: Mapping[str, PoolRollout], usual: RollingUpdates) -> RollingUpdates:
    """Returns bounds that remove one old worker, of prefill if possible, because decode workers can prefill."""
    for pool in (roles.PREFILL, roles.DECODE):
        if pool in rollouts and (old := rollouts[pool].old.total):
            missing = rollouts[pool].target - old - rollouts[pool].new.total
            unavailable = max(usual[pool].unavailable, missing + 1)
            return {**usual, pool: dataclasses.replace(usual[pool], unavailable=unavailable)}
    return usual


def _largest(observed: Observed, budget: GpuBudget, pool: str, revisions: Revisions) -> int:
    """Returns the maximum number of GPUs of one of a pool's workers, including workers that are to start."""
    templates = [template for template in (revisions.template, revisions.good) if template is not None]
    planned = [devices.gpus(devices.requested(template["spec"]), budget.names) for template in templates]
    return max([*planned, *(budget.in_use([pod]) for pod in observed.of_pool(pool))])


def _admit(
    observed: Observed, budget: GpuBudget, plans: Mapping[str, PoolPlan]
) -> tuple[dict[str, PoolPlan], tuple[Apply, ...]]:
    """Returns the plans with only the starts that have GPUs now, and these starts in order.

    Pools below their minimum come first, and decode before prefill. No start breaks the ratio, even briefly.
    """
    room = math.inf if budget.total is None else budget.total - budget.in_use(observed.pods)
    needs = {pool: [budget.needed_by(start) for start in made.start] for pool, made in plans.items()}
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
    """Returns the pool of each worker that may start, in order, while there are GPUs and the ratio allows it.

    `needs` are the GPUs of each worker to start, by pool; `counts` are the staying workers; `room` is the free GPUs.
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
    """True if one more worker keeps the ratio. Replacements and surges, beyond the target, always do."""
    others = counts.get(pool_sizes.other(pool), 0)
    return counts[pool] >= target or pool_sizes.keeps_ratio(spec, pool, counts[pool] + 1, others)
