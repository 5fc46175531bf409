"""Routes from outside the cluster, on a real API server: first without the Gateway API, then with it."""

import asyncio
from pathlib import Path

GATEWAY_API = Path(__file__).parents[2] / "support" / "gateway_api_httproutes.yaml"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/httproutes.gateway.networking.k8s.io"
PUBLIC = {"name": "public", "namespace": "infra"}
ROUTES = {
    "httpRoute": {"parentRefs": [PUBLIC], "hostnames": ["a.example.com"]},
    "ingress": {"hosts": ["a.example.org"], "className": "nginx", "annotations": {"a.example/b": "c"}},
}
ACCEPTED = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": 1}
PARENTS = {"parents": [{"controllerName": "a.example/b", "parentRef": PUBLIC, "conditions": [ACCEPTED]}]}
ADDRESS = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}


async def test_routes_come_with_their_api_and_go_with_their_fields(s, operator, build):
    await s.call("DELETE", CRD)
    await s.make(build(gateway=ROUTES))
    await s.wait(s.ready)
    await s.wait(lambda: s.condition("RouteReady"), ("False", "RouteAPIMissing"))
    await s.cluster.patch_status(s.ref("demo-gateway", "Ingress"), ADDRESS)
    await asyncio.to_thread(s.api.install, [GATEWAY_API])
    try:
        await _reconcile(s, 5)
        await s.wait(lambda: s.exists("HTTPRoute", "demo-gateway"))
        await s.wait(lambda: s.condition("RouteReady"), ("False", "RoutePending"))
        await s.cluster.patch_status(s.ref("demo-gateway", "HTTPRoute"), PARENTS)
        await s.wait(lambda: s.condition("RouteReady"), ("True", "Accepted"))
        routes = {entry["kind"]: entry for entry in (await s.cluster.get(s.ref()))["status"]["routes"]}
        assert (routes["HTTPRoute"]["accepted"], routes["Ingress"]["addresses"]) == (True, ["192.0.2.1"])
        await _stays_as_it_is(s)
        await s.make(build())
        for kind in ("HTTPRoute", "Ingress"):
            await s.wait(lambda kind=kind: s.is_gone(kind, "demo-gateway"))
        await s.wait(lambda: s.condition("RouteReady"), ("", ""))
        await s.wait(lambda: _is_forgotten(s))
        assert await s.ready()
    finally:
        await s.call("DELETE", CRD)


async def _stays_as_it_is(s):
    """Checks that fields which the API server fills in are not a reason to write."""
    before = await s.cluster.get(s.ref("demo-gateway", "HTTPRoute"))
    assert before["spec"]["rules"][0]["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]
    await _reconcile(s, 6)
    after = await s.cluster.get(s.ref("demo-gateway", "HTTPRoute"))
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert [owner["name"] for owner in after["metadata"]["ownerReferences"]] == ["demo"]


async def _reconcile(s, ratio):
    """Edits a field that changes no route and no pod, and waits until the operator has seen that."""
    await s.edit("InferenceService", "demo", lambda item: item["spec"].update(scaling={"maxPrefillPerDecode": ratio}))
    await s.wait(s.is_current)


async def _is_forgotten(s):
    return "routes" not in (await s.cluster.get(s.ref()))["status"]
