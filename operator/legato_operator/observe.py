"""One read pass over the cluster and the workers, for one service. Reads only; decides nothing."""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from legato_operator import resources
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, Ref, is_leaving, labels_of, uid_of
from legato_operator.errors import NotFound
from legato_operator.manifests import common, secret
from legato_operator.observed import Observed, Pod, WorkerState
from legato_protocol import names

REFUSED_EXIT_CODE = 2


class Workers(Protocol):
    """How workers are spoken to."""

    async def state(self, address: str, token: str) -> WorkerState | None:
        """What a worker says of itself; None when it does not answer."""
        ...

    async def drain(self, address: str, token: str) -> None:
        """Tell a worker to drain. A worker that does not answer is told again by the next plan."""
        ...


async def observe(cluster: Cluster, workers: Workers, clock: Clock, ref: Ref) -> Observed:
    """All that concerns one service. Raises NotFound when it is gone, ManifestError when it cannot be read."""
    stored = await cluster.get(ref)
    service = resources.service_from_object(stored)
    mine = {names.LABEL_SERVICE: ref.name}
    pods = (await cluster.list("Pod", ref.namespace, mine)).items
    pools = (await cluster.list(names.WORKER_POOL, ref.namespace, mine)).items
    token = await read_token(cluster, service)
    seen = await asyncio.gather(*(_pod(item, workers, token) for item in pods))
    return Observed(
        service=service,
        generation=stored["metadata"]["generation"],
        status=stored.get("status", {}),
        deleting=is_leaving(stored),
        wishes={p["spec"]["role"]: p["spec"]["replicas"] for p in pools if p["spec"].get("replicas") is not None},
        pods=tuple(sorted(seen, key=lambda pod: (pod.created, pod.name))),
        has_token=bool(token),
        now=clock.now(),
        timestamp=clock.timestamp(),
    )


async def read_token(cluster: Cluster, service: resources.InferenceService) -> str:
    """The service's token; empty when there is none yet."""
    try:
        return secret.read(
            await cluster.get(Ref("Secret", service.metadata.namespace, common.token_name(service))), "token"
        )
    except NotFound:
        return ""


async def _pod(item: Object, workers: Workers, token: str) -> Pod:
    labels, status = labels_of(item), item.get("status", {})
    pool = labels[names.LABEL_ROLE]
    ready, message = _ready(status)
    address = _control_address(status) if pool != common.GATEWAY else ""
    since = item["metadata"].get("annotations", {}).get(common.ANNOTATION_DRAINING)
    return Pod(
        name=item["metadata"]["name"],
        uid=uid_of(item),
        pool=pool,
        revision=labels[names.LABEL_POD_REVISION],
        created=item["metadata"]["creationTimestamp"],
        ready=ready,
        leaving=is_leaving(item),
        message=message,
        refused=_refused(status),
        address=address,
        draining_since=float(since) if since is not None else None,
        state=await workers.state(address, token) if address else None,
    )


def _ready(status: Mapping[str, Any]) -> tuple[bool, str]:
    condition: Mapping[str, Any] = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    return condition.get("status") == "True", condition.get("message", "")


def _control_address(status: Mapping[str, Any]) -> str:
    port = status.get("ports", {}).get("control")
    return f"{status['podIP']}:{port}" if port and status.get("podIP") else ""


def _refused(status: Mapping[str, Any]) -> str:
    """The last words of a process that ended with the exit code of a permanent error."""
    for container in status.get("containerStatuses", ()):
        ended = container.get("lastState", {}).get("terminated", {})
        if ended.get("exitCode") == REFUSED_EXIT_CODE:
            return ended.get("message") or "ended with a permanent error"
    return ""
