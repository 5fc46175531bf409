"""The plan for a service's gateway: one that serves, while gateways of older revisions finish. Pure."""

from dataclasses import replace
from typing import Any

from legato_operator.cluster import Ref
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.pods import gateway
from legato_operator.observing.observed import Observed
from legato_operator.planning import owned
from legato_operator.planning.actions import Apply, Delete
from legato_operator.planning.pools.pool_plan import PoolPlan, count, free_names
from legato_operator.planning.rollout.revisions import Revisions
from legato_operator.planning.rollout.rolling_update import RollingUpdate, next_step

REPLICAS = 1  # of processes: they share one listening socket


def plan_gateway(observed: Observed, placement: PodPlacement, revisions: Revisions) -> PoolPlan:
    """Plans one step towards the gateway's template. If the new gateway fails, old ones stay."""
    make_plan = _plan_pods if placement.containers is None else _plan_deployment
    return replace(make_plan(observed, revisions.template), paused=revisions.failure is not None)


def _plan_deployment(observed: Observed, template: dict[str, Any]) -> PoolPlan:
    """Plans the Deployment, which does the rollout. Its status only counts if it is for the newest spec."""
    service = observed.service
    made = gateway.deployment(service, template)
    live = observed.find(common.DEPLOYMENT, made["metadata"]["name"]) or {}
    start = tuple(owned.apply(observed, made))
    status, metadata = live.get("status", {}), live.get("metadata", {})
    changed = any(common.applied_hash(action.item) != common.applied_hash(live) for action in start)
    current = not changed and status.get("observedGeneration", 0) >= metadata.get("generation", 0)
    updated = status.get("updatedReplicas", 0) if current else 0
    return PoolPlan(
        start=start,
        leave=(),
        target=service.spec.gateway.replicas,
        current=min(updated, status.get("availableReplicas", 0)),
        old=status.get("replicas", 0) - updated,
        leaving=0,
    )


def _plan_pods(observed: Observed, template: dict[str, Any]) -> PoolPlan:
    """Plans pods of one machine: a new gateway starts, then the old one is deleted and finishes its streams.

    Terminating gateways delay no step, because a new one does not need their memory.
    """
    revision = common.revision_of(template)
    pods = observed.of_pool(common.GATEWAY)
    new = [pod for pod in pods if pod.revision == revision and not pod.leaving]
    old = [pod for pod in pods if pod.revision != revision and not pod.leaving]
    step = next_step(count(old), count(new), leaving=0, target=REPLICAS, bounds=RollingUpdate(surge=1, unavailable=0))
    victims = [
        *[pod for pod in old if not pod.ready][: step.remove_old_starting],
        *[pod for pod in old if pod.ready][: step.remove_old_ready],
        *[pod for pod in new if not pod.ready][: step.remove_new_starting],
        *[pod for pod in new if pod.ready][: step.remove_new_ready],
    ]
    names = free_names(common.pool_name(observed.service, common.GATEWAY), pods)
    owner = common.service_object(observed.service, observed.uid)
    made = (common.owned(common.pod(observed.service, next(names), template), owner) for _ in range(step.create))
    namespace = observed.service.metadata.namespace
    return PoolPlan(
        start=tuple(Apply(item) for item in made),
        leave=tuple(Delete(Ref("Pod", namespace, pod.name), pod.uid) for pod in victims),
        target=REPLICAS,
        current=count(new).ready,
        old=sum(pod.revision != revision for pod in pods),
        leaving=sum(pod.leaving for pod in pods),
    )
