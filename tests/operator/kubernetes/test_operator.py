"""The operator on a real API server: what is applied is what there is, whoever else writes there."""

import asyncio

from legato_operator.cluster import Ref, uid_of
from legato_operator.errors import ObjectNotFound

KINDS = ("Service", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget")


async def test_service_becomes_ready_with_all_that_it_owns(s, operator, build):
    await s.make(build())
    await s.wait(s.ready)
    assert set(await s.pods("prefill")) == {"demo-prefill-0"}
    assert set(await s.pods("decode")) == {"demo-decode-0"}
    for kind in KINDS:
        assert (await s.cluster.list(kind, s.name, {"serving.legato.dev/service": "demo"})).items, kind
    assert await s.exists("Secret", "demo-token")
    assert await s.exists("Deployment", "demo-gateway")


async def test_deleted_and_edited_objects_come_back_and_foreign_fields_stay(s, operator, build):
    await s.make(build())
    await s.wait(s.ready)
    front = Ref("Service", s.name, "demo")
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo", "namespace": s.name}}
    foreign["metadata"]["annotations"] = {"example.com/mine": "yes"}
    await s.cluster.apply(foreign, "somebody")
    desired = (await s.cluster.get(front))["spec"]["ports"]
    await s.edit("Service", "demo", lambda edited: edited["spec"]["ports"][0].update(port=81))

    async def mended():
        return (await s.cluster.get(front))["spec"]["ports"] == desired

    await s.wait(mended)
    assert (await s.cluster.get(front))["metadata"]["annotations"]["example.com/mine"] == "yes"
    for kind, name in (("NetworkPolicy", "demo-workers"), ("ServiceAccount", "demo-worker")):
        before = uid_of(await s.cluster.get(Ref(kind, s.name, name)))
        await s.cluster.delete(Ref(kind, s.name, name))

        async def back(kind=kind, name=name, before=before):
            try:
                return uid_of(await s.cluster.get(Ref(kind, s.name, name))) != before
            except ObjectNotFound:
                return False

        await s.wait(back)
    gone = (await s.pods("decode"))["demo-decode-0"]
    await s.cluster.delete(Ref("Pod", s.name, "demo-decode-0"))

    async def replaced():  # by another name, if the old one is still leaving
        return [uid_of(pod) for pod in (await s.pods("decode")).values()] not in ([], [uid_of(gone)])

    await s.wait(replaced)
    await s.wait(s.ready)


async def test_settled_service_is_not_written_to(s, operator, build):
    """With a mode that tells nothing: these pods answer no question, which the autoscaler's status would tell of."""
    await s.make(build(scaling={"mode": "External"}))
    await s.wait(lambda: _settled(s))
    before = await _versions(s)
    for name in ("other", "third"):
        await s.make(build(), name)
        await s.wait(lambda name=name: s.ready(name))
    assert {ref: await _version(s, ref) for ref in before} == before


async def test_edited_while_no_operator_ran_is_mended_when_one_starts(s, build):
    async with s.operator():
        await s.make(build())
        await s.wait(s.ready)
    await s.cluster.delete(Ref("PodDisruptionBudget", s.name, "demo-decode"))
    async with s.operator("two"):
        await s.wait(lambda: s.exists("PodDisruptionBudget", "demo-decode"))


async def test_scale_subresource_sets_the_replicas_with_external_scaling(s, operator, build):
    """`kubectl scale` writes /scale; the operator makes the workers and never takes the field."""
    await s.make(build(scaling={"mode": "External", "decode": {"max": 3}}))
    await s.wait(s.ready)
    path = f"/apis/serving.legato.dev/v1alpha1/namespaces/{s.name}/workerpools/demo-decode"
    body = {"spec": {"replicas": 2}}
    status, answer = await asyncio.to_thread(
        s.api.call, "PATCH", f"{path}/scale?fieldManager=kubectl", body, "application/merge-patch+json"
    )
    assert status == 200, answer
    await s.wait(lambda: _are(s, "decode", {"demo-decode-0", "demo-decode-1"}))

    async def told():
        _, scale = await asyncio.to_thread(s.api.call, "GET", f"{path}/scale")
        return scale["status"]["replicas"] == 2 and scale["status"]["selector"]

    await s.wait(told)
    pool = await s.cluster.get(Ref("WorkerPool", s.name, "demo-decode"))
    assert pool["spec"]["replicas"] == 2
    owners = [
        entry["manager"]
        for entry in pool["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    ]
    assert owners == ["kubectl"]


async def test_scale_down_drains_before_it_deletes(s, operator, build):
    await s.make(build(scaling={"mode": "External", "decode": {"min": 1, "max": 3}}))
    await s.wait(s.ready)
    s.kubelet.busy |= {"demo-decode-0": 1, "demo-decode-1": 3}
    await _scale(s, 2)
    await s.wait(lambda: _are(s, "decode", {"demo-decode-0", "demo-decode-1"}))
    await s.wait(lambda: _settled(s))
    await _scale(s, 1)

    async def drained():
        return "demo-decode-0" in s.kubelet.drained

    await s.wait(drained)
    assert set(await s.pods("decode")) == {"demo-decode-0", "demo-decode-1"}, "it is still busy"
    assert s.kubelet.drained == {"demo-decode-0"}
    s.kubelet.busy["demo-decode-0"] = 0
    await s.wait(lambda: _are(s, "decode", {"demo-decode-1"}))


async def test_deletion_leaves_nothing(s, operator, build):
    await s.make(build())
    await s.wait(s.ready)
    await s.cluster.delete(s.ref())
    await s.wait(lambda: _gone(s))
    for kind in ("Pod", "Deployment", "WorkerPool", "Secret", *KINDS):
        await s.wait(lambda kind=kind: _none(s, kind))


async def test_deletion_is_held_up_by_no_pod_for_longer_than_the_drain_deadline(s, operator, build):
    """A pod whose kubelet is gone never ends; the service goes without it."""
    await s.make(build(drain={"deadline": "10ms"}))
    await s.wait(s.ready)
    s.kubelet.asleep.add("demo-decode-0")
    await s.cluster.delete(s.ref())
    await s.wait(lambda: _gone(s))


async def test_namespace_with_a_service_can_be_deleted(s, build):
    async with s.operator(lease_namespace="default", identity="space"):
        await s.make(build())
        await s.wait(s.ready)
        path = f"/api/v1/namespaces/{s.name}"
        assert (await asyncio.to_thread(s.api.call, "DELETE", path))[0] == 200

        async def gone():
            return (await asyncio.to_thread(s.api.call, "GET", path))[0] == 404

        await s.wait(gone)


async def _settled(s):
    return await s.ready() and await s.condition("Progressing") == ("False", "UpToDate")


async def _versions(s):
    found = {}
    for kind in ("InferenceService", "WorkerPool", "Deployment", "Secret", *KINDS):
        for item in (await s.cluster.list(kind, s.name)).items:
            found[Ref(kind, s.name, item["metadata"]["name"])] = None
    return {ref: await _version(s, ref) for ref in found}


async def _version(s, ref):
    return (await s.cluster.get(ref))["metadata"]["resourceVersion"]


async def _scale(s, replicas):
    await s.edit("WorkerPool", "demo-decode", lambda pool: pool["spec"].update(replicas=replicas))


async def _has_ready(s, replicas):
    """As the operator saw it last: one that it takes to be starting would go before any other."""
    return (await s.cluster.get(Ref("WorkerPool", s.name, "demo-decode")))["status"].get("readyReplicas") == replicas


async def _are(s, role, names):
    return set(await s.pods(role)) == names


async def _gone(s):
    return not await s.exists("InferenceService", "demo")


async def _none(s, kind):
    return not (await s.cluster.list(kind, s.name, {"serving.legato.dev/service": "demo"})).items
