"""Carries a plan out: the only writer. Stops at the first conflict; the next pass sees the world as it is then."""

import secrets

from legato_operator.actions import MANAGER, Action, Apply, Delete, Drain, MakeToken, Phase, Release
from legato_operator.cluster import Cluster, Ref
from legato_operator.errors import NotFound
from legato_operator.manifests import secret
from legato_operator.observe import Workers, read_token
from legato_operator.observed import Observed
from legato_protocol import names

FINALIZER = f"{names.API_GROUP}/operator"


async def apply(cluster: Cluster, workers: Workers, observed: Observed, phases: tuple[Phase, ...]) -> None:
    """Every action, in order. Raises Conflict."""
    for phase in phases:
        for action in phase.actions:
            await _act(cluster, workers, observed, action)


async def hold(cluster: Cluster, ref: Ref, uid: str) -> None:
    """Put the operator's finalizer on a service, so that it goes only after its processes."""
    await _set_finalizers(cluster, ref, uid, [FINALIZER])


async def _act(cluster: Cluster, workers: Workers, observed: Observed, action: Action) -> None:
    service = observed.service
    match action:
        case Apply(item, manager, force):
            await cluster.apply(item, manager, force)
        case MakeToken():
            await cluster.apply(secret.token(service, secrets.token_urlsafe(32)), MANAGER)
        case Drain(_, address):
            await workers.drain(address, await read_token(cluster, service))
        case Delete(ref, uid):
            await _delete(cluster, ref, uid)
        case Release():
            await _release(cluster, observed)


async def _delete(cluster: Cluster, ref: Ref, uid: str | None = None) -> None:
    try:
        await cluster.delete(ref, uid)
    except NotFound:
        return  # somebody else was faster


async def _release(cluster: Cluster, observed: Observed) -> None:
    metadata = observed.service.metadata
    for kind in (names.WORKER_POOL, "Secret"):
        for item in (await cluster.list(kind, metadata.namespace, {names.LABEL_SERVICE: metadata.name})).items:
            await _delete(cluster, Ref(kind, metadata.namespace, item["metadata"]["name"]))
    ref = Ref(names.INFERENCE_SERVICE, metadata.namespace, metadata.name)
    await _set_finalizers(cluster, ref, (await cluster.get(ref))["metadata"]["uid"], [])


async def _set_finalizers(cluster: Cluster, ref: Ref, uid: str, finalizers: list[str]) -> None:
    metadata = {"name": ref.name, "namespace": ref.namespace, "uid": uid, "finalizers": finalizers}
    await cluster.apply({"apiVersion": names.API_VERSION, "kind": ref.kind, "metadata": metadata}, MANAGER)
