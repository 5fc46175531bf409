"""A namespace that ends takes rights away before its services are gone: they must not hold it up."""

import pytest

from legato_operator import apply
from legato_operator.api import parsing
from legato_operator.clock import SystemClock
from legato_operator.cluster import ObjectList, Ref
from legato_operator.errors import Forbidden, ObjectNotFound
from legato_operator.observing.observe import observe
from legato_operator.observing.observed import Accepted

REF = Ref("InferenceService", "ending", "demo")


class Ending:
    """A `Cluster` with one service, whose Secrets may not be touched."""

    def __init__(self, leaving: bool) -> None:
        stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {}
        metadata = {"name": "demo", "namespace": "ending", "uid": "u", "generation": 1, **stamp}
        source = {"source": {"builtin": "smollm2-135m-instruct"}}
        self.service = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": REF.kind, "metadata": metadata}
        self.service["spec"] = {"model": source}
        self.accepted = Accepted(parsing.service_from_object(self.service), 1, self.service["spec"])
        self.finalizers = None

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


class NullWorkers:
    """No worker answers."""

    async def state(self, address, tokens, tls=None):
        return None


async def test_a_leaving_service_is_let_go_without_its_token():
    cluster = Ending(leaving=True)
    observed = await observe(cluster, NullWorkers(), SystemClock(), cluster.service, cluster.accepted)
    assert observed.deleting
    assert not observed.has_token
    await apply.release(cluster, REF)
    assert cluster.finalizers == []


async def test_a_service_that_stays_is_not_taken_for_one_without_a_token():
    """Else its token would be made anew, under workers that know the old one."""
    cluster = Ending(leaving=False)
    with pytest.raises(Forbidden):
        await observe(cluster, NullWorkers(), SystemClock(), cluster.service, cluster.accepted)
