"""The operator on a real API server: what is applied is what there is, whoever else writes there."""

from legato_operator.cluster import Ref, uid_of
from legato_operator.errors import ObjectNotFound

KINDS = ("Service", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "PodDisruptionBudget")


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
    await s.wait(s.is_settled)
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
    """As `kubectl scale` does it; the operator makes as many workers as the bounds allow, and never takes the field."""
    await s.make(build(scaling={"mode": "External", "decode": {"max": 3}}))
    await s.wait(s.ready)
    path = f"/apis/serving.legato.dev/v1alpha1/namespaces/{s.name}/workerpools/demo-decode"
    for replicas, workers, reason in ((2, 2, "UpToDate"), (9, 3, "Capped")):
        body = {"spec": {"replicas": replicas}}
        status, answer = await s.call("PATCH", f"{path}/scale?fieldManager=kubectl", body, merge=True)
        assert status == 200, answer
        await s.wait(lambda workers=workers: _are(s, "decode", {f"demo-decode-{number}" for number in range(workers)}))
        await s.wait(lambda reason=reason: s.condition("Progressing"), ("False", reason))

        async def told(workers=workers):
            _, scale = await s.call("GET", f"{path}/scale")
            return scale["status"]["replicas"] == workers and scale["status"]["selector"]

        await s.wait(told)
        pool = await s.cluster.get(Ref("WorkerPool", s.name, "demo-decode"))
        assert pool["spec"]["replicas"] == replicas
        fields = [
            (entry["manager"], entry["fieldsV1"].get("f:spec", {})) for entry in pool["metadata"]["managedFields"]
        ]
        assert [manager for manager, spec in fields if "f:replicas" in spec] == ["kubectl"]


async def test_deletion_is_held_up_by_no_pod_for_longer_than_the_drain_deadline(s, operator, build):
    """A pod whose kubelet is gone never ends; the service goes without it."""
    await s.make(build(drain={"deadline": "10ms"}))
    await s.wait(s.ready)
    s.kubelet.asleep.add("demo-decode-0")
    await s.cluster.delete(s.ref())
    await s.wait(s.is_gone)


async def test_namespace_with_a_service_can_be_deleted(s, build):
    async with s.operator(lease_namespace="default", identity="space"):
        await s.make(build())
        await s.wait(s.ready)
        path = f"/api/v1/namespaces/{s.name}"
        assert (await s.call("DELETE", path))[0] == 200
        await s.wait(lambda: _status(s, path), 404)


async def _versions(s):
    found = {}
    for kind in ("InferenceService", "WorkerPool", "Deployment", "Secret", *KINDS):
        for item in (await s.cluster.list(kind, s.name)).items:
            found[Ref(kind, s.name, item["metadata"]["name"])] = None
    return {ref: await _version(s, ref) for ref in found}


async def _version(s, ref):
    return (await s.cluster.get(ref))["metadata"]["resourceVersion"]


async def _are(s, role, names):
    return set(await s.pods(role)) == names


async def _status(s, path):
    return (await s.call("GET", path))[0]
