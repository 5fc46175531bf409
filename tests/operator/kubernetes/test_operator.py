"""The operator on a real API server: what is applied is what there is, whoever else writes there."""

import pytest

from legato_operator import apply
from legato_operator.acceptance import accept
from legato_operator.clock import SystemClock
from legato_operator.cluster import ref_of, uid_of
from legato_operator.errors import Conflict
from legato_operator.manifests import common, placement
from legato_operator.observing.observe import Observer
from legato_operator.planning.actions import Apply
from legato_operator.planning.plan import plan

PLACE = placement.kubernetes("engine:test", "gateway:test")


class NoWorkers:
    """None answers."""

    async def state(self, address, tokens, tls=None):
        return None


async def test_everything_applied_twice_changes_nothing(s, build):
    """All objects of a service, its pods among them: the second apply leaves every resourceVersion as it is."""
    await s.make(build())
    written = {}
    for _ in range(3):  # pods start in the pass after their pools
        stored = await s.cluster.get(s.ref())
        accepted = await accept(s.cluster, stored, PLACE)
        observed = await Observer(s.cluster, NoWorkers(), SystemClock()).observe(stored, accepted)
        phases = plan(observed, PLACE).phases
        await apply.apply(s.cluster, NoWorkers(), observed, phases)
        done = [action for phase in phases for action in phase.actions if isinstance(action, Apply)]
        written |= {(ref_of(action.item), action.manager): action for action in done}
    kinds = {ref.kind for ref, _ in written}
    assert kinds >= {"Pod", *common.OWNED_KINDS} - {common.REVISION}  # which keeps what came up; no worker answers here
    for action in written.values():
        await s.wait(lambda action=action: _changes_nothing(s, action))


async def _changes_nothing(s, action):
    """Asked again where Kubernetes' own controllers may have written between the two calls. Pods are made but once."""
    before = await s.cluster.get(ref_of(action.item))
    if before["kind"] == "Pod":
        with pytest.raises(Conflict):
            await s.cluster.create(action.item, action.manager)
        return True
    after = await s.cluster.apply(action.item, action.manager, action.force)
    return after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_deleted_and_edited_objects_come_back_and_foreign_fields_stay(s, operator, build):
    """Also owner references, labels and the hash of the applied object, which keeps no other service back."""
    await s.serve(build(), "demo", "torn")
    metadata = {"name": "demo", "namespace": s.name, "annotations": {"example.com/mine": "yes"}}
    front = await s.cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata}, "somebody")

    async def ports():
        return (await s.cluster.get(ref_of(front)))["spec"]["ports"]

    await s.edit("Service", "demo", lambda edited: edited["spec"]["ports"][0].update(port=81))
    await s.wait(ports, front["spec"]["ports"])
    assert (await s.cluster.get(ref_of(front)))["metadata"]["annotations"]["example.com/mine"] == "yes"
    mark = {"serving.legato.dev/applied-hash": "nonsense"}
    await s.edit("WorkerPool", "torn-decode", lambda pool: pool["metadata"].update(annotations=mark))
    await s.edit("Service", "torn", _break_service)
    await s.wait(lambda: _is_mended(s))
    for kind, name in (("NetworkPolicy", "demo-workers"), ("ServiceAccount", "demo-worker")):
        old = await s.cluster.get(s.ref(name, kind))
        await s.cluster.delete(ref_of(old))
        await s.wait(lambda old=old: _has_successor(s, old))
    before = await s.uids("decode")
    await s.cluster.delete(s.ref("demo-decode-0", "Pod"))
    await s.wait(lambda: s.is_replaced(before))
    await s.serve(build(engine={"chunkTokens": 64}))
    await s.wait(lambda: s.ready("torn"))


def _break_service(front):
    front["metadata"] |= {"labels": {"serving.legato.dev/service": "torn"}, "annotations": {}}
    front["metadata"].pop("ownerReferences", None)
    front["spec"]["ports"] = [{"port": 1, "name": "x"}, {"port": 2, "name": "y"}]
    front["spec"]["selector"] = {}


async def _has_successor(s, old):
    """True if another object has the name of one that was deleted."""
    found = {ref_of(item): uid_of(item) for item in (await s.cluster.list(old["kind"], s.name)).items}
    return found.get(ref_of(old), uid_of(old)) != uid_of(old)


async def _is_mended(s):
    spec = (await s.cluster.get(s.ref("torn", "Service")))["spec"]
    return 80 in [port["port"] for port in spec["ports"]] and spec.get("selector")


async def test_deletion_is_held_up_by_no_pod_for_longer_than_the_drain_deadline(s, operator, build):
    """A pod whose kubelet is gone never ends; the service goes without it."""
    await s.serve(build(drain={"deadline": "10ms"}))
    s.kubelet.asleep.add("demo-decode-0")
    await s.cluster.delete(s.ref())
    await s.wait(s.is_gone)


async def test_namespace_with_a_service_can_be_deleted(s, build):
    async with s.operator(lease_namespace="default", identity="space"):
        await s.serve(build())
        path = f"/api/v1/namespaces/{s.name}"
        assert (await s.call("DELETE", path))[0] == 200

        async def status():
            return (await s.call("GET", path))[0]

        await s.wait(status, 404)


async def test_service_that_outlived_its_operator_goes_when_its_finalizer_is_taken_away(s, build):
    """As docs/kubernetes.md says: with all that it owned."""
    async with s.operator():
        await s.serve(build())
    await s.cluster.delete(s.ref())
    assert await s.exists("InferenceService", "demo")
    await s.edit("InferenceService", "demo", lambda service: service["metadata"].pop("finalizers"))
    for kind in ("InferenceService", "WorkerPool", "Deployment", "Pod", "Service", "Role", "PodDisruptionBudget"):
        await s.wait(lambda kind=kind: s.has_none(kind))
    await s.wait(lambda: s.is_gone("Secret", "demo-token"))
