"""Objects of a service other than pods: desired ones, drifted ones and obsolete ones. Pure."""

from collections.abc import Iterator
from typing import Any

from legato_operator.cluster import is_leaving, ref_of, uid_of
from legato_operator.manifests import (
    access,
    common,
    disruption_budget,
    network_policy,
    pool,
    secret,
    service,
)
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.pods import adapters, worker
from legato_operator.observing.observed import Observed
from legato_operator.planning import drift, routes, status, token_rotation
from legato_operator.planning.actions import Action, Apply, Delete, PatchStatus
from legato_operator.planning.pools.limits import Targets
from legato_protocol import names

_ELSEWHERE = (common.DEPLOYMENT, common.REVISION)  # kinds whose desired state is computed elsewhere


def desired(observed: Observed, targets: Targets, placement: PodPlacement) -> list[dict[str, Any]]:
    """Returns the desired objects, except the gateway's Deployment, revisions and the token."""
    service_ = observed.service
    common_objects = [pool.worker_pool(service_, name) for name in targets]
    if adapters.are_listed(service_):
        common_objects.append(adapters.config_map(service_, placement))
    if placement.containers is None:
        return common_objects  # pods that are processes of one machine need nothing else
    return [
        access.worker_account(service_),
        access.gateway_account(service_),
        access.role(service_),
        access.binding(service_),
        service.workers(service_),
        service.gateway(service_),
        network_policy.workers(service_, placement.containers.operator_namespace),
        network_policy.gateway(service_, placement.containers.operator_namespace),
        *(_budget(observed, name, target.replicas) for name, target in targets.items()),
        disruption_budget.gateway(service_),
        *routes.desired(observed),
        *common_objects,
    ]


def _budget(observed: Observed, pool_name: str, target: int) -> dict[str, Any]:
    ready = sum(pod.ready and not pod.leaving for pod in observed.of_pool(pool_name))
    return disruption_budget.pool(observed.service, pool_name, target, ready)


def make(observed: Observed, targets: Targets, placement: PodPlacement) -> Iterator[Action]:
    """Yields the token's next step and every object that differs from its desired state.

    A pool's `spec.replicas` is applied once; afterwards it belongs to the scaler, unless `scaling.mode` is Fixed.
    """
    yield from token_rotation.steps(observed, placement)
    if placement.containers is not None and observed.token is not None and observed.token.uid:
        yield from _apply(observed, secret.witness(observed.service, observed.token.uid))
    for item in desired(observed, targets, placement):
        yield from apply(observed, item)
    fixed = observed.service.spec.scaling.mode == "Fixed"
    for name, target in targets.items():
        current = observed.desired_replicas.get(name)
        if current is None or (fixed and current != target.replicas):
            yield Apply(pool.scale(observed.service, name, target.replicas), manager=common.SCALER)
    yield from _adopt(observed)


def _adopt(observed: Observed) -> Iterator[Apply]:
    """Yields the applies that give workers of a deleted pool to the pool that replaced it."""
    for pod in observed.pods:
        owner = observed.pools.get(pod.pool)
        if pod.adoptable and not pod.leaving and owner is not None and not is_leaving(owner):
            yield Apply(worker.adopted(observed.service, pod.name, pod.uid, owner), manager=common.ADOPTER)


def apply(observed: Observed, item: dict[str, Any]) -> Iterator[Apply]:
    """Yields the apply of an owned object, unless it is already as desired.

    The apply is only forced over the service's own objects: a foreign object of this name is not taken over.
    """
    yield from _apply(observed, common.owned(item, common.service_object(observed.service, observed.uid)))


def _apply(observed: Observed, item: dict[str, Any]) -> Iterator[Apply]:
    whole = common.signed(item)
    live = observed.find(item["kind"], item["metadata"]["name"])
    if drift.has_drifted(whole, live):
        yield Apply(whole, force=live is not None)


def report(observed: Observed, targets: Targets) -> Iterator[PatchStatus]:
    """Yields a patch for each pool whose status has changed."""
    for name, item in observed.pools.items():
        if name not in targets:
            continue
        current = status.pool_status(observed, name, targets[name], item)
        if not drift.contained(current, item.get("status")):
            yield PatchStatus(ref_of(item), current, uid_of(item))


def obsolete(observed: Observed, targets: Targets, placement: PodPlacement) -> Iterator[Delete]:
    """Yields the deletion of objects that are no longer desired; pools only once their workers are gone."""
    keep = {ref_of(item) for item in desired(observed, targets, placement)}
    for item in observed.objects:
        if ref_of(item) in keep or item["kind"] in _ELSEWHERE or not common.is_ours(item):
            continue
        if item["kind"] != names.WORKER_POOL or not observed.of_pool(item["spec"]["role"]):
            yield Delete(ref_of(item), uid_of(item))


def all_of(observed: Observed) -> Iterator[Delete]:
    """Yields the deletion of every owned object, for a service that is being deleted."""
    for item in observed.objects:
        if common.is_ours(item):
            yield Delete(ref_of(item), uid_of(item))
