"""A namespace that ends takes rights away before its services are gone: they must not hold it up."""

import pytest

from legato_operator import apply
from legato_operator.api import parsing
from legato_operator.clock import SystemClock
from legato_operator.cluster import ObjectList, Ref
from legato_operator.errors import Forbidden, ObjectNotFound
from legato_operator.observing.observe import Observer
from legato_operator.observing.observed import Accepted
from legato_operator.observing.route_hosts import NullRouteHosts

REF = Ref("InferenceService", "ending", "demo")


class Ending:
    """A `Cluster` with one service, whose Secrets may not be touched."""

    def __init__(self, item, **stamp):
        metadata = {"name": "demo", "namespace": "ending", "uid": "u", "generation": 1, **stamp}
        self.service = item | {"metadata": metadata}
        self.accepted = Accepted(parsing.service_from_object(self.service), 1, item["spec"])
        self.finalizers = None

    async def state(self, address, tokens, tls=None):
        return

    async def get(self, ref):
        if ref.kind == "Secret":
            raise Forbidden("403: secrets is forbidden")
        return self.service

    async def list(self, kind, namespace=None, labels=None):
        return ObjectList((), 1)

    async def apply(self, item, manager, force=False):
        self.finalizers = item["metadata"]["finalizers"]
        return self.service

    async def delete(self, ref, uid=None):
        raise Forbidden("403: secrets is forbidden") if ref.kind == "Secret" else ObjectNotFound(ref.name)


async def test_a_leaving_service_is_let_go_without_its_token(build):
    cluster = Ending(build(), deletionTimestamp="2026-01-01T00:00:00Z")
    observed = await Observer(cluster, cluster, SystemClock(), cluster, NullRouteHosts()).observe(
        cluster.service, cluster.accepted
    )
    assert (observed.deleting, observed.has_token) == (True, False)
    await apply.release(cluster, REF)
    assert cluster.finalizers == []


async def test_a_service_that_stays_is_not_taken_for_one_without_a_token(build):
    """Else its token would be made anew, under workers that know the old one."""
    cluster = Ending(build())
    with pytest.raises(Forbidden):
        await Observer(cluster, cluster, SystemClock(), cluster, NullRouteHosts()).observe(
            cluster.service, cluster.accepted
        )
