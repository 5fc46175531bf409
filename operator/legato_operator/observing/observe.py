"""One read pass over the cluster, the workers and the gateways of one service. Decides nothing."""

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from legato_operator.observing.recent_states import RecentStates
from legato_operator.observing.route_hosts import NullRouteHosts, RouteHosts
from legato_protocol import names
from legato_protocol.wire.canary import Canary
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

    async def set_canary(
        self, address: str, tokens: Sequence[str], canary: Canary | None, tls: PeerTLS | None = None
    ) -> None:
        """Sets or ends a gateway's canary. The next plan repeats the request if the gateway does not answer."""
        ...


@dataclass(frozen=True)
class _Listing:
    """Objects of a service, and its pods without the reports of their processes."""

    objects: tuple[Object, ...]
    pods: list[Pod]
    others: frozenset[str]
    unusable: Mapping[str, tuple[str, str]]


class Observer:
    """Observes services. Remembers their tokens, in case a Secret is lost, and the last states of their workers."""

    def __init__(
        self,
        cluster: Cluster,
        workers: Workers,
        clock: Clock,
        gateways: Gateways,
        hosts: RouteHosts | NullRouteHosts,
    ) -> None:
        self._cluster = cluster
        self._workers = workers
        self._clock = clock
        self._gateways = gateways
        self._hosts = hosts
        self._tokens: dict[tuple[Ref, str], ServiceToken] = {}  # last known tokens, by service and its uid
        self._states = RecentStates()

    async def observe(self, stored: Object, accepted: Accepted, upgrades_stopped: str = "") -> Observed:
        """Returns everything about a stored service, whose accepted spec is reconciled. A token that somebody else
        wrote is not remembered."""
        ref, service, leaving = ref_of(stored), accepted.service, is_leaving(stored)
        token, remembered = await _token(self._cluster, service, leaving), self._tokens.get((ref, uid_of(stored)))
        listing = await self._list(stored, service)
        observed = Observed(
            service=service,
            uid=uid_of(stored),
            generation=accepted.generation,
            status=stored.get("status", {}),
            deleting=leaving,
            objects=listing.objects,
            pods=await self._ask(ref, listing.pods, known_tokens(token, remembered)),
            others=listing.others,
            has_token=token is not None,
            now=self._clock.now(),
            timestamp=self._clock.timestamp(),
            missing=await self._missing(service),
            annotations=stored["metadata"].get("annotations", {}),
            written=accepted.written,
            refusal=accepted.refusal,
            unknown=accepted.unknown,
            unusable=listing.unusable,
            hosts_taken=() if leaving else await self._hosts.find_taken(stored),
            upgrades_stopped=upgrades_stopped,
            token=token,
            remembered_token=remembered,
        )
        if token is not None and not token.edited:
            self._tokens[ref, uid_of(stored)] = token
        return observed

    async def refresh(self, before: Observed) -> Observed:
        """Returns an observation with what gateways report now; everything else is as it was."""
        pods = reached.mark_unreached(await ask_gateways(before.pods, self._gateways, before.tokens))
        return dataclasses.replace(before, pods=tuple(pods), now=self._clock.now(), timestamp=self._clock.timestamp())

    def forget(self, service: Ref) -> None:
        """Forgets the tokens and workers of a deleted service."""
        self._states.forget(service)
        self._tokens = {key: token for key, token in self._tokens.items() if key[0] != service}

    async def _list(self, stored: Object, service: resources.InferenceService) -> _Listing:
        cluster, ref, status = self._cluster, ref_of(stored), stored.get("status", {})
        mine = {names.LABEL_SERVICE: ref.name}
        kinds = ("Pod", ownership.REPLICA_SET, *common.OWNED_KINDS)
        pods, sets, *lists = await asyncio.gather(*(list_known(cluster, kind, ref.namespace, mine) for kind in kinds))
        routes, unusable = await find_routes(cluster, ref, service, status)
        listed = await _adapter_list(cluster, service, status)
        objects = (*(item for each in lists for item in each.items), *routes, *listed)
        own, others = ownership.read(ref, uid_of(stored), pods.items, (*sets.items, *objects), self._clock.now())
        own = await pod_events.explain_blocked(cluster, ref.namespace, await peer_tls.attach(cluster, service, own))
        return _Listing(objects, own, others, unusable)

    async def _ask(self, service: Ref, pods: Iterable[Pod], tokens: Sequence[str]) -> tuple[Pod, ...]:
        """Returns the pods with the reports of their processes, oldest first."""
        asked = await asyncio.gather(*(_ask_worker(pod, self._workers, tokens) for pod in pods))
        asked = self._states.attach(service, asked, self._clock.now())
        asked = reached.mark_unreached(await ask_gateways(asked, self._gateways, tokens))
        return tuple(sorted(asked, key=lambda pod: (pod.created, pod.name)))

    async def _missing(self, service: resources.InferenceService) -> tuple[tuple[str, str], ...]:
        """Returns the fields that reference missing objects, each with the problem."""
        needed = references.of(service.spec)
        problems = (find_problem(self._cluster, service.metadata.namespace, each) for each in needed)
        return tuple(dict.fromkeys(problem for problem in await asyncio.gather(*problems) if problem))


async def find(cluster: Cluster, ref: Ref) -> Object | None:
    """Returns an object, or None if it does not exist."""
    try:
        return await cluster.get(ref)
    except ObjectNotFound:
        return None


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
    stored = await find(cluster, ref)
    if stored is not None and not secret.belongs_to(stored, service.metadata.name):
        raise ClusterError(f"Secret {ref.name} is not the service's own: it needs one of that name for its token")
    return None if stored is None else secret.read(stored)


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
