"""One read pass over the cluster, the workers and the gateways, for one service. Reads only; decides nothing."""

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from legato_operator.api import conditions, references, resources
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, ObjectList, Ref, is_leaving, labels_of, ref_of, uid_of
from legato_operator.errors import ClusterError, Forbidden, ObjectNotFound, Unavailable
from legato_operator.manifests import adapters, common, route, secret
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing import ownership, peer_tls, pod_events, reached
from legato_operator.observing.observed import Accepted, Observed, PeerTLS, Pod, WorkerState, known_tokens
from legato_protocol import names
from legato_protocol.demand import DemandReport


class Workers(Protocol):
    """How workers are spoken to."""

    async def state(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> WorkerState | None:
        """What a worker says of itself; None when it does not answer, or takes none of the tokens."""
        ...

    async def drain(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> None:
        """Tell a worker to drain. A worker that does not answer is told again by the next plan."""
        ...

    async def recall(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> bool:
        """Tell a worker that drains to serve again; False where it does not answer, or its process is to end."""
        ...


class Gateways(Protocol):
    """How gateways are spoken to."""

    async def report(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> DemandReport | None:
        """What a gateway tells; None when it does not answer, or takes none of the tokens."""
        ...


class NullGateways:
    """None answers."""

    async def report(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> DemandReport | None:
        return None


async def observe(
    cluster: Cluster,
    workers: Workers,
    clock: Clock,
    stored: Object,
    accepted: Accepted,
    gateways: Gateways | None = None,
    remembered: ServiceToken | None = None,
) -> Observed:
    """All that concerns the service that is stored so, of which this spec is reconciled. `remembered` is what the
    Secret of its token held in an earlier pass."""
    ref = ref_of(stored)
    service = accepted.service
    mine = {names.LABEL_SERVICE: ref.name}
    token = await _token(cluster, service, is_leaving(stored))
    tokens = known_tokens(token, remembered)
    kinds = ("Pod", ownership.REPLICA_SET, *common.OWNED_KINDS)
    pods, sets, *lists = await asyncio.gather(*(list_known(cluster, kind, ref.namespace, mine) for kind in kinds))
    routes, unusable = await find_routes(cluster, ref, service, stored.get("status", {}))
    listed = await _adapter_list(cluster, service, stored.get("status", {}))
    objects = (*(item for listing in lists for item in listing.items), *routes, *listed)
    found, others = ownership.read(ref, uid_of(stored), pods.items, (*sets.items, *objects), clock.now())
    found = await pod_events.explained(cluster, ref.namespace, await peer_tls.known(cluster, service, found))
    seen = await asyncio.gather(*(_asked(pod, workers, tokens) for pod in found))
    seen = reached.judged(await asked_gateways(seen, gateways or NullGateways(), tokens))
    missing = await asyncio.gather(
        *(find_problem(cluster, ref.namespace, needed) for needed in references.of(service.spec))
    )
    return Observed(
        service=service,
        uid=uid_of(stored),
        generation=accepted.generation,
        status=stored.get("status", {}),
        deleting=is_leaving(stored),
        objects=objects,
        pods=tuple(sorted(seen, key=lambda pod: (pod.created, pod.name))),
        others=others,
        has_token=token is not None,
        now=clock.now(),
        timestamp=clock.timestamp(),
        missing=tuple(dict.fromkeys(problem for problem in missing if problem)),
        annotations=stored["metadata"].get("annotations", {}),
        written=accepted.written,
        refusal=accepted.refusal,
        unknown=accepted.unknown,
        unusable=unusable,
        token=token,
        remembered_token=remembered,
    )


async def list_known(
    cluster: Cluster, kind: str, namespace: str | None, labels: Mapping[str, str] | None = None
) -> ObjectList:
    """All objects of a kind that carry these labels; none if the cluster has no such kind (its CRD was deleted)."""
    try:
        return await cluster.list(kind, namespace, labels)
    except ObjectNotFound:
        return ObjectList((), 0)


async def find_routes(
    cluster: Cluster, ref: Ref, service: resources.InferenceService, status: Mapping[str, Any]
) -> tuple[list[Object], dict[str, tuple[str, str]]]:
    """Routes of the kinds that the service wants or had, and why a kind cannot be used: clusters may lack the Gateway
    API, and operators the right."""
    wanted = {item["kind"] for item in route.of(service)} | {entry["kind"] for entry in status.get("routes") or ()}
    found: list[Object] = []
    unusable = {}
    for kind in sorted(wanted):
        try:
            found += (await cluster.list(kind, ref.namespace, {names.LABEL_SERVICE: ref.name})).items
        except ObjectNotFound:
            unusable[kind] = conditions.ROUTE_API_MISSING, f"the cluster has no {kind}; install the Gateway API's CRDs"
        except Forbidden as error:
            unusable[kind] = conditions.API_REFUSED, f"the operator may not create {kind}s (rbac.routes): {error}"
    return found, unusable


async def _adapter_list(
    cluster: Cluster, service: resources.InferenceService, status: Mapping[str, Any]
) -> list[Object]:
    """The ConfigMap with the adapters of a service that has some, or had. It is looked for by its name: nobody may list
    all that there are. One of that name that is somebody else's is not touched."""
    if not (adapters.are_listed(service) or conditions.find(status, conditions.ADAPTERS_READY)):
        return []
    name, namespace = service.metadata.name, service.metadata.namespace
    try:
        found = await cluster.get(Ref(adapters.CONFIG_MAP, namespace, adapters.name(name)))
    except (ObjectNotFound, Forbidden):
        return []
    return [found] if labels_of(found).get(names.LABEL_SERVICE) == name else []


async def find_pods(cluster: Cluster, service: Ref, uid: str, now: float) -> list[Pod]:
    """The pods of a service, without what their workers say."""
    mine = {names.LABEL_SERVICE: service.name}
    kinds = ("Pod", *ownership.MAKERS)
    pods, *makers = await asyncio.gather(*(list_known(cluster, kind, service.namespace, mine) for kind in kinds))
    found, _ = ownership.read(service, uid, pods.items, [item for each in makers for item in each.items], now)
    return found


async def find_problem(cluster: Cluster, namespace: str, needed: references.Reference) -> tuple[str, str] | None:
    """The field and what is wrong with it. What may not be looked at is taken to be there: its pod tells."""
    try:
        found = await cluster.get(Ref(needed.kind, namespace, needed.name))
    except Forbidden:
        return None
    except ObjectNotFound:
        return needed.path, f"{needed.kind} {needed.name} not found"
    if needed.key and needed.key not in {**(found.get("data") or {}), **(found.get("binaryData") or {})}:
        return needed.path, f"{needed.kind} {needed.name} has no key {needed.key}"
    return None


async def _token(cluster: Cluster, service: resources.InferenceService, leaving: bool) -> ServiceToken | None:
    """A namespace that ends takes the right to its Secrets away, perhaps before its services are gone.

    Nor does one who leaves need a Secret that is somebody else's.
    """
    try:
        return await read_token(cluster, service)
    except Unavailable:
        raise
    except ClusterError:
        if not leaving:
            raise
        return None


async def read_token(cluster: Cluster, service: resources.InferenceService) -> ServiceToken | None:
    """The service's token; None when there is none, or somebody took it out of its Secret.

    Raises ClusterError where a Secret of that name is somebody else's.
    """
    ref = Ref("Secret", service.metadata.namespace, common.token_name(service))
    try:
        found = await cluster.get(ref)
        if not secret.is_of(found, service.metadata.name):
            raise ClusterError(f"Secret {ref.name} is not the service's own: it needs one of that name for its token")
        return secret.read(found)
    except ObjectNotFound:
        return None


async def asked_gateways(pods: Iterable[Pod], gateways: Gateways, tokens: Sequence[str]) -> list[Pod]:
    """These pods, each gateway with what it told."""

    async def asked(pod: Pod) -> Pod:
        if pod.pool != common.GATEWAY or not _may_answer(pod):
            return pod
        return dataclasses.replace(pod, report=await gateways.report(pod.address, tokens, pod.tls))

    return await asyncio.gather(*map(asked, pods))


async def _asked(pod: Pod, workers: Workers, tokens: Sequence[str]) -> Pod:
    if pod.pool == common.GATEWAY or not _may_answer(pod):
        return pod
    return dataclasses.replace(pod, state=await workers.state(pod.address, tokens, pod.tls))


def _may_answer(pod: Pod) -> bool:
    return bool(pod.address) and not (pod.failed or pod.lost)
