"""Executes a plan, as the only writer. Stops at the first conflict; the next pass observes the new state."""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from legato_operator.api import kinds
from legato_operator.cluster import Cluster, Object, Ref, labels_of, ref_of, uid_of
from legato_operator.errors import ClusterError, Conflict, Forbidden, NotLeading, ObjectNotFound, Unavailable
from legato_operator.manifests import common, secret
from legato_operator.observing.observe import Gateways, Workers, find, list_known
from legato_operator.observing.observed import Observed
from legato_operator.planning.actions import (
    Action,
    Apply,
    Delete,
    DrainWorker,
    PatchStatus,
    Phase,
    RecallWorker,
    Release,
    SetCanary,
    SetToken,
)
from legato_protocol import names
from legato_protocol.security import service_tokens

FINALIZER = f"{names.API_GROUP}/operator"
CONCURRENT = 8  # objects of a phase
_ACCESS = ("Role", "RoleBinding")  # in this order: a binding is refused before its role exists


@dataclass(frozen=True)
class Writers:
    """The clients through which actions are carried out."""

    cluster: Cluster
    workers: Workers
    gateways: Gateways


async def apply(writers: Writers, observed: Observed, phases: tuple[Phase, ...]) -> None:
    """Executes all phases in order.

    Conflict, NotLeading and Unavailable stop further actions and are raised. Permanent refusals, such as by a quota,
    are raised after all other actions.
    """
    refusals: list[ClusterError] = []
    for phase in phases:
        left = deque(_independent(phase.actions))
        sharing = (_carry_out(writers, observed, left, refusals) for _ in range(min(CONCURRENT, len(left))))
        ended = await asyncio.gather(*sharing, return_exceptions=True)
        if errors := [error for error in ended if error is not None]:
            raise errors[0]
    if refusals:
        raise refusals[0]


async def _carry_out(
    writers: Writers, observed: Observed, left: deque[list[Action]], refusals: list[ClusterError]
) -> None:
    """Executes the remaining groups of actions, concurrently with other workers of the same queue."""
    while left:
        for action in left.popleft():
            try:
                await _act(writers, observed, action)
            except (Conflict, NotLeading, Unavailable):
                left.clear()
                raise
            except ClusterError as refusal:
                refusals.append(refusal)


def _independent(actions: Sequence[Action]) -> list[list[Action]]:
    """Groups actions by object: groups may run concurrently, and each group runs in order."""
    groups: dict[object, list[Action]] = {}
    for action in actions:
        groups.setdefault(_about(action), []).append(action)
    return list(groups.values())


def _about(action: Action) -> object:
    match action:
        case Apply(item) if item["kind"] in _ACCESS:
            return _ACCESS
        case Apply({"kind": "Pod"}, force=False):
            return "start"  # in the planned order, which matters if there is not room for all
        case Apply(item) | RecallWorker(item):
            return item["kind"], item["metadata"]["name"]
        case PatchStatus(ref) | Delete(ref):
            return ref.kind, ref.name
        case DrainWorker(name) | SetCanary(name):
            return "Pod", name
        case _:
            return type(action)


def is_held(stored: Object) -> bool:
    """True if the service has the operator's finalizer."""
    return FINALIZER in stored["metadata"].get("finalizers", ())


async def hold(cluster: Cluster, ref: Ref, uid: str) -> None:
    """Adds the operator's finalizer to a service, so that it is removed only after its processes."""
    await _set_finalizers(cluster, ref, uid, [FINALIZER])


async def _act(writers: Writers, observed: Observed, action: Action) -> None:
    service, cluster, workers = observed.service, writers.cluster, writers.workers
    match action:
        case Apply(item, manager, force):
            await _apply(cluster, item, manager, force)
        case PatchStatus(ref, status, uid):
            await cluster.patch_status(ref, status, uid)
        case SetToken(token, fresh):
            made = token
            if fresh == service_tokens.TOKEN:
                made = replace(token, token=secrets.token_urlsafe(32))
            elif fresh == service_tokens.NEXT:
                made = replace(token, next=secrets.token_urlsafe(32))
            owner = common.service_object(service, observed.uid)
            await cluster.apply(common.owned(secret.manifest(service, made), owner), common.MANAGER, force=True)
        case DrainWorker(_, address, tls):
            await workers.drain(address, observed.tokens, tls)
        case RecallWorker(item, _, address, tls):
            # The worker is asked first: one that refuses must keep its annotation, or it would drain unnoticed.
            if await workers.recall(address, observed.tokens, tls):
                await _apply(cluster, item, common.DRAINER, force=True)
        case SetCanary(_, address, canary, tls):
            await writers.gateways.set_canary(address, observed.tokens, canary, tls)
        case Delete(ref, uid):
            await _delete(cluster, ref, uid)
        case Release():
            await release(cluster, service.ref)


async def _apply(cluster: Cluster, item: Mapping[str, Any], manager: str, force: bool) -> None:
    if force:
        await cluster.apply(item, manager, force)
        return
    try:
        await cluster.create(item, manager)
    except Conflict as taken:
        await _take_back(cluster, item, manager, taken)


async def _take_back(cluster: Cluster, item: Mapping[str, Any], manager: str, taken: Conflict) -> None:
    """Restores the labels, and for other kinds than pods all fields, of the service's own object that lost its labels.

    Raises ClusterError if the object belongs to somebody else: apply would take it over without a conflict, because one
    manager applies for all services. Raises Conflict if the object has its labels, or was deleted meanwhile.
    """
    live = await find(cluster, ref_of(item))
    if live is None:
        raise taken
    owners = live["metadata"].get("ownerReferences", ())
    mine = {owner["uid"] for owner in item["metadata"]["ownerReferences"]}
    if not any(owner["uid"] in mine for owner in owners):
        whose = "".join(f", but of {owner['kind']} {owner['name']}" for owner in owners)
        raise ClusterError(f"{item['kind']} {item['metadata']['name']} is not the service's own{whose}")
    if labels_of(item).items() <= labels_of(live).items():
        raise taken
    lacking = dict(item)
    if item["kind"] == "Pod":
        kept = {key: item["metadata"][key] for key in ("name", "namespace", "labels")}
        lacking = kinds.item("Pod", {**kept, "uid": uid_of(live)})
    try:
        await cluster.apply(lacking, manager)
    except Conflict as conflict:  # permanent: somebody else owns the missing fields
        raise ClusterError(f"{item['kind']} {item['metadata']['name']} is not the service's own: {conflict}") from None


async def _delete(cluster: Cluster, ref: Ref, uid: str | None = None) -> None:
    try:
        await cluster.delete(ref, uid)
    except ObjectNotFound:
        return  # somebody else was faster


async def release(cluster: Cluster, ref: Ref) -> None:
    """Removes the finalizer of a service, and its objects that would outlive it without garbage collection."""
    for kind in (names.WORKER_POOL, common.REVISION):
        mine = await list_known(cluster, kind, ref.namespace, {names.LABEL_SERVICE: ref.name})
        for item in mine.items:
            await _delete(cluster, Ref(kind, ref.namespace, item["metadata"]["name"]))
    with contextlib.suppress(Forbidden):  # a terminating namespace, which also deletes the Secret
        await _end_token(cluster, ref)
    await _set_finalizers(cluster, ref, (await cluster.get(ref))["metadata"]["uid"], [])


async def _end_token(cluster: Cluster, service: Ref) -> None:
    ref = Ref("Secret", service.namespace, common.token_name_of(service.name))
    stored = await find(cluster, ref)
    if stored is not None and secret.belongs_to(stored, service.name):
        await _delete(cluster, ref, uid_of(stored))


async def _set_finalizers(cluster: Cluster, ref: Ref, uid: str, finalizers: list[str]) -> None:
    metadata = {"name": ref.name, "namespace": ref.namespace, "uid": uid, "finalizers": finalizers}
    await cluster.apply(kinds.item(ref.kind, metadata), common.MANAGER)
