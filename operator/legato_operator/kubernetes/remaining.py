"""Which services an operator looks after, for who is about to take it away: they would be left without one."""

import asyncio
from collections.abc import Callable

from kubernetes.client import Configuration

from legato_operator.cluster import Ref, ref_of
from legato_operator.errors import ObjectNotFound
from legato_operator.kubernetes import connection
from legato_operator.kubernetes.api import KubernetesCluster
from legato_operator.kubernetes.claims import CLAIM
from legato_operator.kubernetes.settings import OperatorSettings
from legato_protocol import names

MOST_LISTED = 10


def check(settings: OperatorSettings, load: Callable[[], Configuration] = connection.load) -> str:
    """What is left and what to do about it; empty if nothing is. Raises ClusterError and NoConnection."""
    cluster = KubernetesCluster(connection.client(load()))
    try:
        found = asyncio.run(services(cluster, settings))
    finally:
        cluster.close()
    if not found:
        return ""
    listed = ", ".join(f"{ref.namespace}/{ref.name}" for ref in found[:MOST_LISTED])
    more = f" and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
    return (
        f"InferenceServices are left, which nobody would scale, repair or delete: {listed}{more}. Delete them first. "
        "To leave them running without an operator, uninstall with `helm uninstall --no-hooks`"
    )


async def services(cluster: KubernetesCluster, settings: OperatorSettings) -> list[Ref]:
    """Those of its namespaces that no other release has claimed; none where the API server does not know the kind."""
    release = f"{settings.lease_namespace}/{settings.lease_name}"
    found: list[Ref] = []
    for namespace in settings.namespaces or (None,):
        try:
            found += map(ref_of, (await cluster.list_metadata(names.INFERENCE_SERVICE, namespace)).items)
        except ObjectNotFound:
            continue
    mine = {ref.namespace for ref in found} - set(settings.ignored_namespaces)
    mine = {namespace for namespace in mine if await _holder(cluster, namespace) in ("", release)}
    return sorted(ref for ref in found if ref.namespace in mine)


async def _holder(cluster: KubernetesCluster, namespace: str) -> str:
    """The release that has claimed a namespace; empty when none has."""
    try:
        lease = await cluster.get(Ref("Lease", namespace, CLAIM))
    except ObjectNotFound:
        return ""
    return str(lease["spec"].get("holderIdentity") or "")
