"""The operator on a real API server: what is applied is what there is, whoever else writes there."""

from legato_operator.cluster import ref_of, uid_of


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
