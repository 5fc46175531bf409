"""The plan for one pool: which workers to start, whom to drain, whom to delete. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from legato_operator.actions import DRAINER, Action, Apply, Delete, Drain
from legato_operator.cluster import Object, Ref
from legato_operator.manifests import common, worker
from legato_operator.observed import Observed, Pod
from legato_operator.rollout import Count, next_step

REPLACE_FAILED_AFTER = 10.0  # seconds of age: where every pod fails at once, they are not replaced faster than that


@dataclass(frozen=True)
class PoolPlan:
    start: tuple[Action, ...]
    leave: tuple[Action, ...]
    target: int
    current: int  # ready workers of the newest revision that stay
    old: int  # workers of older revisions, leaving ones included
    leaving: int

    @property
    def settled(self) -> bool:
        """Whether nothing remains to be done here."""
        return self.current == self.target and not self.old and not self.leaving


def plan_pool(observed: Observed, pool: str, template: dict[str, Any], target: int) -> PoolPlan:
    """Bring a pool one step closer to `target` workers made from `template`.

    Workers are owned by their pool's object and start only when there is one. A lost one is waited for by nobody.
    """
    revision = common.revision_of(template)
    pods = observed.of_pool(pool)
    staying = [pod for pod in pods if not _leaves(pod)]
    new = [pod for pod in staying if pod.revision == revision]
    old = [pod for pod in staying if pod.revision != revision]
    rollout = observed.service.spec.rollout
    leaving = sum(_leaves(pod) and not pod.lost for pod in pods)
    step = next_step(count(old), count(new), leaving, target, rollout.max_surge, rollout.max_unavailable)
    victims = [
        *_starting(old)[: step.remove_old_starting],
        *_idlest(old)[: step.remove_old_ready],
        *_starting(new)[: step.remove_new_starting],
        *_idlest(new)[: step.remove_new_ready],
    ]
    owner = observed.pools.get(pool)
    names = free_names(common.pool_name(observed.service, pool), pods)
    return PoolPlan(
        start=tuple(_start(observed, owner, next(names), template) for _ in range(step.create)) if owner else (),
        leave=tuple(_leave(observed, pods, victims)),
        target=target,
        current=count(new).ready,
        old=sum(pod.revision != revision and not pod.lost for pod in pods),
        leaving=leaving,
    )


def _start(observed: Observed, owner: Object, name: str, template: dict[str, Any]) -> Apply:
    """Without force: a pod of that name that does not carry the service's labels is somebody else's."""
    return Apply(common.owned(worker.pod(observed.service, name, template), owner), force=False)


def _leaves(pod: Pod) -> bool:
    return pod.leaving or pod.draining_since is not None


def count(pods: Sequence[Pod]) -> Count:
    """Ready and starting ones."""
    ready = sum(pod.ready for pod in pods)
    return Count(ready, len(pods) - ready)


def _starting(pods: Sequence[Pod]) -> list[Pod]:
    """Newest first: the oldest may be the closest to being ready."""
    return sorted((pod for pod in pods if not pod.ready), key=lambda pod: (pod.created, pod.name), reverse=True)


def _idlest(pods: Sequence[Pod]) -> list[Pod]:
    """Ready workers, those with the fewest sequences first, of equal ones the newest."""
    newest_first = sorted((pod for pod in pods if pod.ready), key=lambda pod: (pod.created, pod.name), reverse=True)
    return sorted(newest_first, key=lambda pod: pod.state.busy if pod.state else 0)


def free_names(prefix: str, pods: Sequence[Pod]) -> Iterator[str]:
    """Names that no pod has, without end."""
    taken = {pod.name for pod in pods}
    number = 0
    while True:
        if f"{prefix}-{number}" not in taken:
            yield f"{prefix}-{number}"
        number += 1


def _leave(observed: Observed, pods: Sequence[Pod], victims: Sequence[Pod]) -> Iterator[Action]:
    """Two phases: mark and drain first; delete when nothing runs there any more, or at the drain deadline."""
    namespace = observed.service.metadata.namespace
    for pod in victims:
        if pod.failed:
            continue  # it goes below, when its time has come
        if pod.ready:
            yield Apply(worker.draining(observed.service, pod.name, pod.uid, observed.now), manager=DRAINER)
            yield Drain(pod.name, pod.address)
        else:
            yield Delete(Ref("Pod", namespace, pod.name), pod.uid)
    for pod in pods:
        if pod.failed and not pod.leaving and pod.age >= REPLACE_FAILED_AFTER:
            yield Delete(Ref("Pod", namespace, pod.name), pod.uid)
        if pod.draining_since is None or pod.leaving or pod.failed:
            continue
        expired = observed.now - pod.draining_since >= observed.service.spec.drain.deadline
        dead = pod.state is None and not pod.ready
        if expired or dead or (pod.state is not None and pod.state.draining and pod.state.busy == 0):
            yield Delete(Ref("Pod", namespace, pod.name), pod.uid)
        elif pod.state is not None and not pod.state.draining:
            yield Drain(pod.name, pod.address)  # it restarted, or was not told
