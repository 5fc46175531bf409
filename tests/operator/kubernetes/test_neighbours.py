"""Services do not disturb each other, be it in one namespace, or under one name in two."""

import pytest

SERVICE = "serving.legato.dev/service"


@pytest.mark.parametrize(
    ("plural", "item", "named"),
    [
        ("serviceaccounts", {"metadata": {"name": "demo-gateway"}}, "ServiceAccount demo-gateway"),
        ("secrets", {"metadata": {"name": "demo-token"}, "stringData": {"token": "mine"}}, "Secret demo-token"),
    ],
)
async def test_somebody_else_s_object_is_left_as_it_is_though_it_disagrees_in_nothing(
    s, operator, build, plural, item, named
):
    """Labels and an owner reference would make it the service's, and end it with that. A service `demo` and an access
    token `demo-token` are names that one user may well choose.
    """
    status, before = await s.call("POST", plural, item)
    assert status == 201, before
    await s.make(build())
    await s.wait(lambda: s.condition("Progressing"), ("False", "APIRefused"))
    assert f"{named} is not the service's own" in await s.message()
    await s.cluster.delete(s.ref())
    await s.wait(s.is_gone)
    assert (await s.call("GET", f"{plural}/{item['metadata']['name']}"))[1] == before


async def test_pod_with_the_service_s_labels_that_is_not_its_own_is_never_sent_its_token(s, build):
    """Nor is it counted, taken for a worker, or deleted. It has a name that a worker would have."""
    for role, name in (("decode", "demo-decode-0"), ("gateway", "stranger")):
        await s.cluster.apply(_stranger(s, role, name), "somebody")
    await s.wait(lambda: s.kubelet.up >= {"demo-decode-0", "stranger"})
    async with s.operator():
        await s.serve(build())
        pods = await s.pods("decode")
        assert set(pods) == {"demo-decode-0", "demo-decode-1"}
        assert (await s.cluster.get(s.ref()))["status"]["pools"]["decode"]["replicas"] == 1
        pool = await s.cluster.get(s.ref("demo-decode", "WorkerPool"))
        assert pool["status"]["workers"] == [pods["demo-decode-1"]["metadata"]["uid"]]  # for gateways
        gateways = set(await s.pods("gateway")) - {"stranger"}
        await s.wait(lambda: s.kubelet.trusted >= {"demo-decode-1", "demo-prefill-0", *gateways})
        assert s.kubelet.trusted & {"demo-decode-0", "stranger"} == set()
        await s.end()
        assert set(await s.pods("decode")) == {"demo-decode-0"}
        assert s.kubelet.trusted & {"demo-decode-0", "stranger"} == set()


def _stranger(s, role, name):
    labels = {SERVICE: "demo", "serving.legato.dev/role": role, "app.kubernetes.io/name": f"legato-{role}"}
    ports = [{"name": "control", "containerPort": 8082}]
    metadata = {"name": name, "namespace": s.name, "labels": labels}
    spec = {"containers": [{"name": "worker", "image": "another:1", "ports": ports}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
