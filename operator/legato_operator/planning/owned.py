"""What a service owns beside its pods: what is wished, what differs from it, and what is no longer wanted. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from legato_operator.api import roles
from legato_operator.api.resources import InferenceService
from legato_operator.cluster import ref_of, uid_of
from legato_operator.manifests import (
    access,
    common,
    disruption_budget,
    network_policy,
    pool,
    service,
    service_account,
)
from legato_operator.manifests.placement import Placement
from legato_operator.observing.observed import Observed
from legato_operator.planning import drift, status
from legato_operator.planning.actions import Action, Apply, Delete, MakeToken, PatchStatus
from legato_operator.planning.limits import Target
from legato_protocol import names

_ELSEWHERE = (common.DEPLOYMENT, common.REVISION)  # kinds of which others know what is wished


def wished(service_: InferenceService, placement: Placement) -> list[dict[str, Any]]:
    """All objects that there shall be, but for the gateway's Deployment, revisions and the token."""
    pools = roles.of(service_.spec)
    found = [pool.worker_pool(service_, name) for name in pools]
    if placement.containers is None:
        return found  # pods that are processes of one machine need no more
    return [
        service_account.worker(service_),
        service_account.gateway(service_),
        access.role(service_),
        access.binding(service_),
        service.workers(service_),
        service.front(service_),
        network_policy.workers(service_, placement.containers.operator_namespace),
        network_policy.gateway(service_),
        *(disruption_budget.of_pool(service_, name) for name in pools),
        disruption_budget.gateway(service_),
        *found,
    ]


def make(observed: Observed, targets: dict[str, Target], placement: Placement) -> Iterator[Action]:
    """The token, and every object that is not as it is wished.

    The wish of a pool is applied once; afterwards it belongs to whoever scales, unless it is fixed.
    """
    if not observed.has_token:
        yield MakeToken()
    for item in wished(observed.service, placement):
        yield from apply(observed, item)
    fixed = observed.service.spec.scaling.mode == "Fixed"
    for name, target in targets.items():
        known = observed.wishes.get(name)
        if known is None or (fixed and known != target.replicas):
            yield Apply(pool.wish(observed.service, name, target.replicas), manager=common.SCALER)


def apply(observed: Observed, item: dict[str, Any]) -> Iterator[Apply]:
    """Apply an object of the service's own, unless all that is wished of it is there.

    By force only over what is known to be the service's: another object of that name is not taken from its owner.
    """
    whole = common.signed(common.owned(item, common.service_object(observed.service, observed.uid)))
    live = observed.find(item["kind"], item["metadata"]["name"])
    if not drift.contained(whole, live):
        yield Apply(whole, force=live is not None)


def tell(observed: Observed, pools: Sequence[str]) -> Iterator[PatchStatus]:
    """The status of each pool, where it is another than the one told last."""
    for name, item in observed.pools.items():
        told = status.of_pool(observed, name, item)
        if name in pools and not drift.contained(told, item.get("status")):
            yield PatchStatus(ref_of(item), told, uid_of(item))


def unwanted(observed: Observed, placement: Placement) -> Iterator[Delete]:
    """Objects that were wished once and are no more; pools only when their workers are gone."""
    keep = {ref_of(item) for item in wished(observed.service, placement)}
    for item in observed.objects:
        if ref_of(item) in keep or item["kind"] in _ELSEWHERE or not common.is_ours(item):
            continue
        if item["kind"] != names.WORKER_POOL or not observed.of_pool(item["spec"]["role"]):
            yield Delete(ref_of(item), uid_of(item))


def all_of(observed: Observed) -> Iterator[Delete]:
    """Everything, for the service's end."""
    for item in observed.objects:
        if common.is_ours(item):
            yield Delete(ref_of(item), uid_of(item))
