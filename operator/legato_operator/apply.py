"""Carries a plan out: the only writer. Stops at the first conflict; the next pass sees the world as it is then."""

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from legato_operator.cluster import Cluster, Object, Ref, labels_of, ref_of, uid_of
from legato_operator.errors import ClusterError, Conflict, Forbidden, NotLeading, ObjectNotFound, Unavailable
from legato_operator.manifests import common, secret
from legato_operator.observing.observe import Workers, list_known
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
    SetToken,
)
from legato_protocol import names, service_tokens

FINALIZER = f"{names.API_GROUP}/operator"
TOGETHER = 8  # objects of a phase
_ACCESS = ("Role", "RoleBinding")  # a binding is refused before its role is there


async def apply(cluster: Cluster, workers: Workers, observed: Observed, phases: tuple[Phase, ...]) -> None:
    """Every phase, in order. After a Conflict, NotLeading or Unavailable nothing more is begun, and it is raised; what
    the cluster refuses for good, a quota for one, is raised when all else is done.
    """
    refusals: list[ClusterError] = []
    for phase in phases:
        left = deque(_independent(phase.actions))
        sharing = (_carry_out(cluster, workers, observed, left, refusals) for _ in range(min(TOGETHER, len(left))))
        ended = await asyncio.gather(*sharing, return_exceptions=True)
        if errors := [error for error in ended if error is not None]:
            raise errors[0]
    if refusals:
        raise refusals[0]


async def _carry_out(
    cluster: Cluster,
    workers: Workers,
    observed: Observed,
    left: deque[list[Action]],
    refusals: list[ClusterError],
) -> None:
    """What is left, together with others who do the same."""
    while left:
        for action in left.popleft():
            try:
                await _act(cluster, workers, observed, action)
            except (Conflict, NotLeading, Unavailable):
                left.clear()
                raise
            except ClusterError as refusal:
                refusals.append(refusal)


def _independent(actions: Sequence[Action]) -> list[list[Action]]:
    """What may happen at the same time: each list is about other objects, and has its own order."""
    found: dict[object, list[Action]] = {}
    for action in actions:
        found.setdefault(_about(action), []).append(action)
    return list(found.values())


def _about(action: Action) -> object:
    match action:
        case Apply(item) if item["kind"] in _ACCESS:
            return _ACCESS
        case Apply({"kind": "Pod"}, force=False):
            return "start"  # as they were chosen: where there is no room for all, it is for the first
        case Apply(item) | RecallWorker(item):
            return item["kind"], item["metadata"]["name"]
        case PatchStatus(ref) | Delete(ref):
            return ref.kind, ref.name
        case DrainWorker(name):
            return "Pod", name
        case _:
            return type(action)


def is_held(stored: Object) -> bool:
    """Whether the operator's finalizer is on a service."""
    return FINALIZER in stored["metadata"].get("finalizers", ())


async def hold(cluster: Cluster, ref: Ref, uid: str) -> None:
    """Put the operator's finalizer on a service, so that it goes only after its processes."""
    await _set_finalizers(cluster, ref, uid, [FINALIZER])


async def _act(cluster: Cluster, workers: Workers, observed: Observed, action: Action) -> None:
    service = observed.service
    match action:
        case Apply(item, manager, force):
            await _apply(cluster, item, manager, force)
        case PatchStatus(ref, status, uid):
            await cluster.patch_status(ref, status, uid)
        case SetToken(held, fresh):
            made = held
            if fresh == service_tokens.TOKEN:
                made = replace(held, token=secrets.token_urlsafe(32))
            elif fresh == service_tokens.NEXT:
                made = replace(held, next=secrets.token_urlsafe(32))
            owner = common.service_object(service, observed.uid)
            await cluster.apply(common.owned(secret.manifest(service, made), owner), common.MANAGER, force=True)
        case DrainWorker(_, address, tls):
            await workers.drain(address, observed.tokens, tls)
        case RecallWorker(item, _, address, tls):
            # The worker first: one that refuses keeps its mark, and one that lost it without being told would drain on.
            if await workers.recall(address, observed.tokens, tls):
                await _apply(cluster, item, common.DRAINER, force=True)
        case Delete(ref, uid):
            await _delete(cluster, ref, uid)
        case Release():
            await release(cluster, Ref(names.INFERENCE_SERVICE, service.metadata.namespace, service.metadata.name))


async def _apply(cluster: Cluster, item: Mapping[str, Any], manager: str, force: bool) -> None:
    if force:
        await cluster.apply(item, manager, force)
        return
    try:
        await cluster.create(item, manager)
    except Conflict as taken:
        await _take_back(cluster, item, manager, taken)


async def _take_back(cluster: Cluster, item: Mapping[str, Any], manager: str, taken: Conflict) -> None:
    """Give an object of the service's own that lost its labels what it lacks; of a pod, nothing else can be written.

    Raises ClusterError where it is somebody else's: apply alone would take it from another service, since one manager
    applies for all, and where no field disagrees. Raises Conflict where it should have been seen, or has gone again.
    """
    try:
        found = await cluster.get(ref_of(item))
    except ObjectNotFound:
        raise taken from None
    owners = found["metadata"].get("ownerReferences", ())
    mine = {owner["uid"] for owner in item["metadata"]["ownerReferences"]}
    if not any(owner["uid"] in mine for owner in owners):
        whose = "".join(f", but of {owner['kind']} {owner['name']}" for owner in owners)
        raise ClusterError(f"{item['kind']} {item['metadata']['name']} is not the service's own{whose}")
    if labels_of(item).items() <= labels_of(found).items():
        raise taken
    lacking = dict(item)
    if item["kind"] == "Pod":
        kept = {key: item["metadata"][key] for key in ("name", "namespace", "labels")}
        lacking = {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, "uid": uid_of(found)}}
    try:
        await cluster.apply(lacking, manager)
    except Conflict as conflict:  # looking again mends nothing: somebody else holds what it lacks
        raise ClusterError(f"{item['kind']} {item['metadata']['name']} is not the service's own: {conflict}") from None


async def _delete(cluster: Cluster, ref: Ref, uid: str | None = None) -> None:
    try:
        await cluster.delete(ref, uid)
    except ObjectNotFound:
        return  # somebody else was faster


async def release(cluster: Cluster, ref: Ref) -> None:
    """Let a service go, and what of its own would outlive it where owner references mean nothing."""
    for kind in (names.WORKER_POOL, common.REVISION):
        mine = await list_known(cluster, kind, ref.namespace, {names.LABEL_SERVICE: ref.name})
        for item in mine.items:
            await _delete(cluster, Ref(kind, ref.namespace, item["metadata"]["name"]))
    with contextlib.suppress(Forbidden):  # where the right has gone with the namespace, the Secret goes with it too
        await _end_token(cluster, ref)
    await _set_finalizers(cluster, ref, (await cluster.get(ref))["metadata"]["uid"], [])


async def _end_token(cluster: Cluster, service: Ref) -> None:
    ref = Ref("Secret", service.namespace, common.token_name_of(service.name))
    try:
        found = await cluster.get(ref)
    except ObjectNotFound:
        return
    if secret.belongs_to(found, service.name):
        await _delete(cluster, ref, uid_of(found))


async def _set_finalizers(cluster: Cluster, ref: Ref, uid: str, finalizers: list[str]) -> None:
    metadata = {"name": ref.name, "namespace": ref.namespace, "uid": uid, "finalizers": finalizers}
    await cluster.apply({"apiVersion": names.API_VERSION, "kind": ref.kind, "metadata": metadata}, common.MANAGER)
