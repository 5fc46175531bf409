"""The plan for one pool: workers to start, to recall, to drain and to delete. Pure."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from legato_operator.api import roles
from legato_operator.cluster import Object, Ref
from legato_operator.manifests import common
from legato_operator.manifests.pods import worker
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning import failure
from legato_operator.planning.actions import Action, Apply, Delete, DrainWorker, RecallWorker
from legato_operator.planning.pools import replacement
from legato_operator.planning.pools.limits import PoolTarget
from legato_operator.planning.rollout.revisions import Revisions, Template
from legato_operator.planning.rollout.rolling_update import (
    Count,
    Pace,
    PoolRollout,
    RollingUpdate,
    Step,
    choose_paces,
    next_step,
)


@dataclass(frozen=True)
class PoolPlan:
    start: tuple[Apply, ...]
    leave: tuple[Action, ...]
    target: int
    current: int  # ready workers of the newest revision that stay
    old: int  # workers of older revisions, including leaving ones
    leaving: int
    recall: tuple[RecallWorker, ...] = ()
    staying: int = 0  # workers that have not ended and are not leaving, including recalled ones
    held_back: int = 0  # workers that should start but cannot now
    waiting: tuple[Pod, ...] = ()  # workers without room, although workers of their revision run
    whole: bool = False  # all needed workers are ready and of the newest revision
    paused: bool = False  # the newest revision fails or is compared, and older workers stay

    @property
    def settled(self) -> bool:
        """True if nothing remains to be done for this pool."""
        return self.current == self.target and not self.old and not self.leaving

    @property
    def resting(self) -> bool:
        """True if nothing can be done until the cluster, or the finding about a canary, changes."""
        return (self.paused or bool(self.waiting)) and not (self.start or self.recall or self.leave or self.leaving)

    def holding_back(self, last: int) -> "PoolPlan":
        """Returns the plan without its last starts."""
        return replace(self, start=self.start[: len(self.start) - last], held_back=self.held_back + last)


@dataclass(frozen=True)
class _Workers:
    """A pool's staying workers, by their part in the rollout."""

    new: list[Pod]
    old: list[Pod]
    useless: list[Pod]


def plan_pools(
    observed: Observed,
    revisions: Mapping[str, Revisions],
    rollouts: Mapping[str, PoolRollout],
    gateway_ready: bool,
    bounds: Mapping[str, RollingUpdate],
) -> dict[str, PoolPlan]:
    """Plans one step of every pool towards its target; a pool's pace depends on the other pools' rollouts."""
    paces = choose_paces(rollouts, roles.PREFILL, gateway_ready)  # decode workers can prefill themselves
    return {
        pool: plan_pool(observed, pool, each, rollouts[pool].target, bounds[pool], paces[pool])
        for pool, each in revisions.items()
    }


def plan_pool(
    observed: Observed, pool: str, revisions: Revisions, target: int, bounds: RollingUpdate, pace: Pace = Pace.FREE
) -> PoolPlan:
    """Plans one step of a pool towards `target` workers.

    Workers are owned by their pool's object and only start once it exists. Lost workers delay nothing.
    """
    pods = observed.of_pool(pool)
    workers = _sorted_out(observed, pool, revisions)
    recalled = _recalled(pods, workers, revisions, target if pace is Pace.PAUSE else bounds.new_target(target), pace)
    new, old = count(workers.new), count(workers.old)
    if pace is Pace.PAUSE:
        old = replace(old, starting=old.starting + len(recalled))
    else:
        new = replace(new, starting=new.starting + len(recalled))
    leaving = sum(pod.on_its_way_out and not pod.lost for pod in pods) + len(workers.useless) - len(recalled)
    step = next_step(old, new, leaving, target, bounds, pace)
    victims = _victims(observed, workers, revisions, step, pace)
    templates = [(revisions.name, revisions.template)] * step.create
    templates += [(revisions.good_name, revisions.good)] * step.create_old if revisions.good is not None else []
    failures = [replacement.failures(pod) for pod in pods if replacement.is_due(pod) and not pod.on_its_way_out]
    placeless = {pod.revision for pod in (*workers.new, *workers.old) if pod.placeless}
    tried = [template for name, template in templates if name not in placeless]
    return PoolPlan(
        start=tuple(_starts(observed, pool, tried, failures)),
        recall=tuple(_recall(observed, pod) for pod in recalled),
        leave=tuple(_leave(observed, [pod for pod in pods if pod not in recalled], victims)),
        target=target,
        current=new.ready,
        old=sum(pod.revision != revisions.name and not pod.lost for pod in pods),
        leaving=leaving,
        staying=sum(not pod.failed for pod in (*workers.new, *workers.old)) + len(recalled),
        whole=new.ready >= target and not workers.old and not workers.useless,
        paused=pace in (Pace.PAUSE, Pace.HOLD),
        held_back=len(templates) - len(tried),
        waiting=_waiting((*workers.new, *workers.old)),
    )


def _victims(observed: Observed, workers: _Workers, revisions: Revisions, step: Step, pace: Pace) -> list[Pod]:
    """Returns the workers that the step removes."""
    starting = _starting(workers.new)
    if pace is Pace.PAUSE:  # remove the failing worker last: without it the revision would be tried again
        deadline = observed.service.spec.rollout.progress_deadline
        starting.sort(key=lambda pod: failure.find([pod], deadline) is not None)
    return [
        *workers.useless,
        *_starting(workers.old)[: step.remove_old_starting],
        *_idlest(workers.old, revisions.good_name)[: step.remove_old_ready],
        *starting[: step.remove_new_starting],
        *_idlest(workers.new)[: step.remove_new_ready],
    ]


def _waiting(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """Returns the pods that no node suits although others of their revision run: the revision is not at fault."""
    running = {pod.revision for pod in pods if pod.ready}
    return tuple(pod for pod in pods if pod.placeless and pod.revision in running)


def _recalled(pods: Sequence[Pod], workers: _Workers, revisions: Revisions, target: int, pace: Pace) -> Sequence[Pod]:
    """Returns draining workers to recall instead of starting others, the busiest first: it keeps the most sequences."""
    name, missing = revisions.name, target - len(workers.new)
    if pace is Pace.PAUSE:
        name = revisions.good_name or revisions.name
        missing = target - len(workers.old) - count(workers.new).ready
    able = [pod for pod in pods if pod.recallable and pod.revision == name]
    able.sort(key=lambda pod: pod.state.busy if pod.state else -1, reverse=True)
    return able[: max(0, missing)]


def _recall(observed: Observed, pod: Pod) -> RecallWorker:
    return RecallWorker(worker.serving(observed.service, pod.name, pod.uid), pod.name, pod.address, pod.tls)


def _sorted_out(observed: Observed, pool: str, revisions: Revisions) -> _Workers:
    staying = [pod for pod in observed.of_pool(pool) if not (pod.on_its_way_out or replacement.is_due(pod))]
    new = [pod for pod in staying if pod.revision == revisions.name]
    others = [pod for pod in staying if pod.revision != revisions.name]
    useless = [pod for pod in others if revisions.is_useless(pod)]
    return _Workers(new, [pod for pod in others if pod not in useless], useless)


def pool_rollouts(
    observed: Observed, revisions: Mapping[str, Revisions], targets: Mapping[str, PoolTarget]
) -> dict[str, PoolRollout]:
    """Returns the state of each pool's rollout."""
    return {pool: _rollout(observed, pool, revisions[pool], target.replicas) for pool, target in targets.items()}


def _rollout(observed: Observed, pool: str, revisions: Revisions, target: int) -> PoolRollout:
    workers = _sorted_out(observed, pool, revisions)
    return PoolRollout(
        old=count(workers.old),
        new=count(workers.new),
        target=target,
        changing=revisions.changing,
        failing=revisions.failure is not None,
        returnable=bool(workers.old) or revisions.good is not None,
        blinking=sum(failure.blinks(pod) for pod in workers.new),
    )


def _starts(observed: Observed, pool: str, templates: Sequence[Template], failures: Sequence[int]) -> Iterator[Apply]:
    """Yields the workers to start. The first replace failed workers and carry their numbers of failures in a row."""
    owner = observed.pools.get(pool)
    if owner is not None:
        names = free_names(common.pool_name(observed.service, pool), observed.of_pool(pool), observed.others)
        for template, failed in zip(templates, itertools.chain(failures, itertools.repeat(0)), strict=False):
            yield _start(observed, owner, next(names), template, failed)


def _start(observed: Observed, owner: Object, name: str, template: dict[str, Any], failures: int) -> Apply:
    """Applies a new worker without force: a pod of that name without the service's labels is somebody else's.

    The service is its second owner, so that Kubernetes does not delete the worker if only the pool is deleted.
    """
    made = worker.pod(observed.service, name, template, failures)
    service = common.service_object(observed.service, observed.uid)
    return Apply(common.owned(made, owner, service), force=False)


def count(pods: Sequence[Pod]) -> Count:
    """Counts pods that serve and pods that do not yet."""
    ready = sum(pod.serves for pod in pods)
    return Count(ready, len(pods) - ready)


def _starting(pods: Sequence[Pod]) -> list[Pod]:
    """Returns pods that do not serve, in the order of removal: failed, without a suitable node, newest.

    The oldest are probably the closest to being ready.
    """
    starting = (pod for pod in pods if not pod.serves)
    return sorted(starting, key=lambda pod: (pod.failed, pod.placeless, pod.created, pod.name), reverse=True)


def _idlest(pods: Sequence[Pod], last: str = "") -> list[Pod]:
    """Returns serving workers, the fewest sequences first, then the newest. Workers of revision `last` come last."""
    newest_first = sorted((pod for pod in pods if pod.serves), key=lambda pod: (pod.created, pod.name), reverse=True)
    return sorted(newest_first, key=lambda pod: (pod.revision == last, pod.state.busy if pod.state else 0))


def free_names(prefix: str, pods: Sequence[Pod], others: Collection[str] = ()) -> Iterator[str]:
    """Yields unused names without end."""
    taken = {pod.name for pod in pods}.union(others)
    number = 0
    while True:
        if f"{prefix}-{number}" not in taken:
            yield f"{prefix}-{number}"
        number += 1


def _leave(observed: Observed, pods: Sequence[Pod], victims: Sequence[Pod]) -> Iterator[Action]:
    """Yields the two steps of a removal: annotate and drain; then delete once idle, or at the drain deadline."""
    namespace = observed.service.metadata.namespace
    for pod in victims:
        if pod.failed:
            continue  # deleted below once its replacement is due
        if pod.ready:
            yield Apply(worker.draining(observed.service, pod.name, pod.uid, observed.now), manager=common.DRAINER)
            if pod.address:
                yield DrainWorker(pod.name, pod.address, pod.tls)
        else:
            yield Delete(Ref("Pod", namespace, pod.name), pod.uid)
    for pod in pods:
        if replacement.is_due(pod) and not pod.leaving:
            yield Delete(Ref("Pod", namespace, pod.name), pod.uid)
        if pod.draining_since is None or pod.leaving or pod.failed:
            continue
        expired = observed.now - pod.draining_since >= observed.service.spec.drain.deadline
        dead = pod.state is None and not pod.ready
        if expired or dead or (pod.state is not None and pod.state.draining and pod.state.busy == 0):
            yield Delete(Ref("Pod", namespace, pod.name), pod.uid)
        elif pod.state is not None and not pod.state.draining:
            yield DrainWorker(pod.name, pod.address, pod.tls)  # it restarted, or missed the request
