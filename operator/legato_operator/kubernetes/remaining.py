"""Finds the services of an operator that is about to be uninstalled, because they would be left without one."""

import asyncio
import contextlib
from collections.abc import Callable

from kubernetes.client import Configuration

from legato_operator.cluster import Ref, ref_of
from legato_operator.errors import ObjectNotFound
from legato_operator.kubernetes.client import connection
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.kubernetes.leases.claims import CLAIM
from legato_operator.kubernetes.settings import OperatorSettings
from legato_operator.observing.observe import find
from legato_protocol import names

MOST_LISTED = 10


def check(settings: OperatorSettings, load: Callable[[], Configuration] = connection.load) -> str:
    """Returns an error that lists remaining services, or an empty text. Raises ClusterError and NoConnection."""
    cluster = KubernetesCluster(connection.client(load()))
    try:
        left = asyncio.run(services(cluster, settings))
    finally:
        cluster.close()
    if not left:
        return ""
    listed = ", ".join(f"{ref.namespace}/{ref.name}" for ref in left[:MOST_LISTED])
    more = f" and {len(left) - MOST_LISTED} more" if len(left) > MOST_LISTED else ""
    return (
        f"InferenceServices are left, which nobody would scale, repair or delete: {listed}{more}. Delete them first. "
        "To leave them running without an operator, uninstall with `helm uninstall --no-hooks`"
    )


async def services(cluster: KubernetesCluster, settings: OperatorSettings) -> list[Ref]:
    """Returns the services in the operator's namespaces that no other release has claimed, none without the CRD."""
    release = f"{settings.lease_namespace}/{settings.lease_name}"
    listed: list[Ref] = []
    for namespace in settings.namespaces or (None,):
        with contextlib.suppress(ObjectNotFound):
            listed += map(ref_of, (await cluster.list_metadata(names.INFERENCE_SERVICE, namespace)).items)
    mine = {ref.namespace for ref in listed} - set(settings.ignored_namespaces)
    mine = {namespace for namespace in mine if await _holder(cluster, namespace) in ("", release)}
    return sorted(ref for ref in listed if ref.namespace in mine)


async def _holder(cluster: KubernetesCluster, namespace: str) -> str:
    """Returns the release that has claimed a namespace, or an empty text."""
    lease = await find(cluster, Ref("Lease", namespace, CLAIM))
    return str(lease["spec"].get("holderIdentity") or "") if lease is not None else ""
