"""One read pass over the cluster, the workers and the gateways of one service. Decides nothing."""

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from legato_operator.api import conditions, references, resources
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, ObjectList, Ref, is_leaving, labels_of, ref_of, uid_of
from legato_operator.errors import ClusterError, Forbidden, ObjectNotFound, Unavailable
from legato_operator.manifests import common, route, secret
from legato_operator.manifests.pods import adapters
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing import ownership, peer_tls, pod_events, reached
from legato_operator.observing.observed import Accepted, Observed, PeerTLS, Pod, WorkerState, known_tokens
from legato_protocol import names
from legato_protocol.wire.demand import DemandReport


class Workers(Protocol):
    """Client of workers' control ports."""

    async def state(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> WorkerState | None:
        """Returns a worker's state, or None if it does not answer or accepts none of the tokens."""
        ...

    async def drain(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> None:
        """Asks a worker to drain. The next plan repeats the request if the worker does not answer."""
        ...

    async def recall(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> bool:
        """Asks a draining worker to serve again; False if it does not answer, or its process is stopping."""
        ...


class Gateways(Protocol):
    """Client of gateways' control ports."""

    async def report(self, address: str, tokens: Sequence[str], tls: PeerTLS | None = None) -> DemandReport | None:
        """Returns a gateway's report, or None if it does not answer or accepts none of the tokens."""
        ...


class NullGateways:
    """Gateways that never answer."""

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
    """Returns everything about a stored service, whose accepted spec is reconciled. `remembered` is the service's token
    from an earlier pass."""
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
    own, others = ownership.read(ref, uid_of(stored), pods.items, (*sets.items, *objects), clock.now())
    own = await pod_events.explain_blocked(cluster, ref.namespace, await peer_tls.attach(cluster, service, own))
    seen = await asyncio.gather(*(_ask_worker(pod, workers, tokens) for pod in own))
    seen = reached.mark_unreached(await ask_gateways(seen, gateways or NullGateways(), tokens))
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
    """Lists the objects of a kind with these labels; none if the cluster lacks the kind (its CRD was deleted)."""
    try:
        return await cluster.list(kind, namespace, labels)
    except ObjectNotFound:
        return ObjectList((), 0)


async def find_routes(
    cluster: Cluster, ref: Ref, service: resources.InferenceService, status: Mapping[str, Any]
) -> tuple[list[Object], dict[str, tuple[str, str]]]:
    """Returns the routes of the kinds that the service wants or had, and the reason for each unusable kind: the cluster
    may lack the Gateway API, or the operator the permission."""
    wanted = {item["kind"] for item in route.routes(service)} | {entry["kind"] for entry in status.get("routes") or ()}
    routes: list[Object] = []
    unusable = {}
    for kind in sorted(wanted):
        try:
            routes += (await cluster.list(kind, ref.namespace, {names.LABEL_SERVICE: ref.name})).items
        except ObjectNotFound:
            unusable[kind] = conditions.ROUTE_API_MISSING, f"the cluster has no {kind}; install the Gateway API's CRDs"
        except Forbidden as error:
            unusable[kind] = conditions.API_REFUSED, f"the operator may not create {kind}s (rbac.routes): {error}"
    return routes, unusable


async def _adapter_list(
    cluster: Cluster, service: resources.InferenceService, status: Mapping[str, Any]
) -> list[Object]:
    """Returns the ConfigMap with a service's adapters, if the service has or had some.

    It is read by name, because the operator may not list ConfigMaps. Another's ConfigMap of that name is ignored.
    """
    if not (adapters.are_listed(service) or conditions.find(status, conditions.ADAPTERS_READY)):
        return []
    name, namespace = service.metadata.name, service.metadata.namespace
    try:
        config_map = await cluster.get(Ref(adapters.CONFIG_MAP, namespace, adapters.name(name)))
    except (ObjectNotFound, Forbidden):
        return []
    return [config_map] if labels_of(config_map).get(names.LABEL_SERVICE) == name else []


async def find_pods(cluster: Cluster, service: Ref, uid: str, now: float) -> list[Pod]:
    """Returns the pods of a service, without the reports of their processes."""
    mine = {names.LABEL_SERVICE: service.name}
    kinds = ("Pod", *ownership.MAKERS)
    pods, *makers = await asyncio.gather(*(list_known(cluster, kind, service.namespace, mine) for kind in kinds))
    own, _ = ownership.read(service, uid, pods.items, [item for each in makers for item in each.items], now)
    return own


async def find_problem(cluster: Cluster, namespace: str, needed: references.Reference) -> tuple[str, str] | None:
    """Returns the field and problem of a missing object, or None. An object that may not be read counts as present: its
    pod would report the problem."""
    try:
        item = await cluster.get(Ref(needed.kind, namespace, needed.name))
    except Forbidden:
        return None
    except ObjectNotFound:
        return needed.path, f"{needed.kind} {needed.name} not found"
    if needed.key and needed.key not in {**(item.get("data") or {}), **(item.get("binaryData") or {})}:
        return needed.path, f"{needed.kind} {needed.name} has no key {needed.key}"
    return None


async def _token(cluster: Cluster, service: resources.InferenceService, leaving: bool) -> ServiceToken | None:
    """Returns the service's token.

    Errors do not matter for a service that is being deleted: a terminating namespace may already deny access to its
    Secrets, and a foreign Secret of that name is not needed.
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
    """Returns the service's token, or None if the Secret or its token is missing.

    Raises ClusterError if a Secret of that name belongs to somebody else.
    """
    ref = Ref("Secret", service.metadata.namespace, common.token_name(service))
    try:
        stored = await cluster.get(ref)
        if not secret.belongs_to(stored, service.metadata.name):
            raise ClusterError(f"Secret {ref.name} is not the service's own: it needs one of that name for its token")
        return secret.read(stored)
    except ObjectNotFound:
        return None


async def ask_gateways(pods: Iterable[Pod], gateways: Gateways, tokens: Sequence[str]) -> list[Pod]:
    """Returns the pods, each gateway with its report."""

    async def ask(pod: Pod) -> Pod:
        if pod.pool != common.GATEWAY or not _may_answer(pod):
            return pod
        return dataclasses.replace(pod, report=await gateways.report(pod.address, tokens, pod.tls))

    return await asyncio.gather(*map(ask, pods))


async def _ask_worker(pod: Pod, workers: Workers, tokens: Sequence[str]) -> Pod:
    if pod.pool == common.GATEWAY or not _may_answer(pod):
        return pod
    return dataclasses.replace(pod, state=await workers.state(pod.address, tokens, pod.tls))


def _may_answer(pod: Pod) -> bool:
    return bool(pod.address) and not (pod.failed or pod.lost)
