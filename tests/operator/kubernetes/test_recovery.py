"""What may go wrong around the operator, on a real API server: it recovers by itself and loses nothing."""

import asyncio
import contextlib
import urllib.parse
from pathlib import Path

import control_plane
import httpx
from scrape import metric
from tcp_relay import TcpRelay

from legato_operator.cluster import Ref

LEASE = "legato-operator"
CRDS = Path(__file__).parents[3] / "crds"


async def test_one_of_two_leads_and_the_other_takes_over(s, build):
    async with s.operator("one") as one:
        await s.make(build())
        await s.wait(s.ready)
        async with s.operator("two") as two:
            assert await _holder(s) == "one"
            assert (await _metric(one, "legato_operator_leader")) == 1
            assert (await _metric(two, "legato_operator_leader")) == 0
            one.task.cancel()
            await asyncio.wait((one.task,))
            await s.wait(lambda: _is(_holder(s), "two"))
            await s.make(build(engine={"chunkTokens": 256}))
            await s.wait(lambda: _observed(s, 2))
            assert (await _metric(two, "legato_operator_reconciles_total", result="done")) > 0


async def test_leader_that_dies_without_a_word_is_followed_when_its_lease_ends(s, build):
    held = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}
    await s.cluster.create(_lease(s, held), "test")
    async with s.operator("two"):
        await s.make(build())
        await s.wait(s.ready)
        assert await _holder(s) == "two"


async def test_leader_whose_lease_was_taken_stops(s, build):
    async with s.operator("one") as one:
        await s.make(build())
        await s.wait(s.ready)
        now = {"holderIdentity": "other", "leaseDurationSeconds": 3600}
        await s.cluster.apply(_lease(s, now), "thief", force=True)
        await s.wait(lambda: _is(_metric(one, "legato_operator_leader"), 0))
        before = await _metric(one, "legato_operator_reconciles_total", result="done")
        told = await _told(one)
        await s.cluster.delete(Ref("PodDisruptionBudget", s.name, "demo-decode"))
        await s.wait(lambda: _more_told(one, told))
        assert await _metric(one, "legato_operator_reconciles_total", result="done") == before
        assert not await s.exists("PodDisruptionBudget", "demo-decode")
        await s.cluster.apply(_lease(s, {"leaseDurationSeconds": 1}), "thief", force=True)
        await s.wait(lambda: s.exists("PodDisruptionBudget", "demo-decode"))


async def test_killed_api_server_is_survived(space, build, programs):
    with contextlib.ExitStack() as stack:
        api = await asyncio.to_thread(_own_server, stack, programs)
        async with space(api) as s, s.operator() as one:
            await s.make(build())
            await s.wait(s.ready)
            await asyncio.to_thread(api.kill)
            await s.wait(lambda: _is(_metric(one, "legato_operator_leader"), 0))
            await asyncio.to_thread(api.start)
            await s.cluster.delete(Ref("Pod", s.name, "demo-decode-0"))
            await s.make(build(engine={"chunkTokens": 256}))
            await s.wait(lambda: _observed(s, 2))
            await s.wait(s.ready)
            assert not one.task.done()
            assert (await _get(one, "/healthz")).status_code == 200


async def test_connections_that_fall_silent_are_survived(s, build):
    there = urllib.parse.urlsplit(s.api.url)
    tcp_relay = TcpRelay(there.hostname, there.port)
    async with tcp_relay.running(), s.operator(url=f"https://127.0.0.1:{tcp_relay.port}") as one:
        await s.make(build())
        await s.wait(s.ready)
        tcp_relay.block()
        await s.make(build(engine={"chunkTokens": 256}))
        await s.wait(lambda: _is(_metric(one, "legato_operator_leader"), 0))
        tcp_relay.unblock()
        await s.wait(lambda: _observed(s, 2))
        await s.wait(s.ready)


async def test_objects_that_break_a_pass_stop_no_others(s, operator, build):
    """A manifest that cannot be read, a mark that is no number, and objects of strangers that carry our labels."""
    await s.make(build(), "good")
    await s.make(build(), "torn")
    await s.wait(lambda: s.ready("good"))
    await s.wait(lambda: s.ready("torn"))
    label = {"serving.legato.dev/service": "torn"}
    stranger = {"name": "stranger", "namespace": s.name, "labels": label}
    await s.cluster.apply({"apiVersion": "v1", "kind": "Service", "metadata": stranger, "spec": _PORT}, "x")
    await s.edit("Secret", "torn-token", lambda secret: secret.update(data={"token": "/w=="}))  # no text
    mark = {"serving.legato.dev/draining-since": "yesterday"}
    await s.edit("Pod", "torn-decode-0", lambda pod: pod["metadata"].update(annotations=mark))
    await s.make(build(scaling={"decode": {"max": 1}}, engine={"chunkTokens": 64}), "good")
    await s.wait(lambda: _observed(s, 2, "good"))
    await s.wait(lambda: s.ready("good"))
    assert await s.exists("Service", "stranger")


async def test_refused_manifest_is_told_by_condition_and_event(s, operator, build):
    await s.make(build(engine={"numerics": "Invariant"}))
    await s.wait(lambda: _is(s.condition("Progressing"), ("False", "NotAvailable")))
    await s.wait(lambda: _event(s, "NotAvailable", "Warning"))


async def test_refusal_of_the_api_server_is_told_and_all_else_is_done(s, operator, build):
    """A quota without room for pods: the rest is made, and the condition says what was refused."""
    await s.cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": s.name}}, "x"
    )
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/serviceaccounts": "0"}}}
    path = f"/api/v1/namespaces/{s.name}/resourcequotas"
    status, answer = await asyncio.to_thread(s.api.call, "POST", path, quota)
    assert status < 300, answer
    used = {"status": {"hard": {"count/serviceaccounts": "0"}, "used": {"count/serviceaccounts": "0"}}}
    status, answer = await asyncio.to_thread(
        s.api.call, "PATCH", f"{path}/none/status", used, "application/merge-patch+json"
    )
    assert status < 300, answer
    await s.make(build())
    await s.wait(lambda: _is(s.condition("Progressing"), ("False", "APIRefused")))
    await s.wait(lambda: s.exists("Service", "demo"))
    await s.wait(lambda: _event(s, "APIRefused", "Warning"))
    assert (await asyncio.to_thread(s.api.call, "DELETE", f"{path}/none"))[0] == 200
    await s.wait(s.ready)
    await s.wait(lambda: _is(s.condition("Progressing"), ("False", "UpToDate")))


async def test_health_is_told(s):
    async with s.operator() as one:
        await s.wait(lambda: _is(_status(one, "/readyz"), 200))
        assert (await _get(one, "/healthz")).text == "ok"
        assert "legato_operator_api_calls_total{" in (await _get(one, "/metrics")).text


async def test_services_are_told_of_by_the_leader_alone_until_they_are_gone(s, build):
    async with s.operator() as one:
        ready = {"service": "demo", "type": "Ready", "status": "True"}
        await s.make(build())
        await s.wait(lambda: _is(_metric(one, "legato_operator_condition", **ready), 1))
        await s.wait(lambda: _is(_metric(one, "legato_operator_pool_ready_replicas", pool="decode"), 1))
        taken = {"holderIdentity": "other", "leaseDurationSeconds": 3600}
        await s.cluster.apply(_lease(s, taken), "thief", force=True)
        await s.wait(lambda: _is(_metric(one, "legato_operator_condition"), 0))
        await s.cluster.apply(_lease(s, {"leaseDurationSeconds": 1}), "thief", force=True)
        await s.wait(lambda: _is(_metric(one, "legato_operator_condition", **ready), 1))
        await s.cluster.delete(s.ref())
        await s.wait(lambda: _is(_metric(one, "legato_operator_condition"), 0))


_PORT = {"ports": [{"port": 1}]}


def _own_server(stack, folder):
    api = stack.enter_context(control_plane.running(folder))
    api.install(sorted(CRDS.glob("*.yaml")))
    stack.enter_context(control_plane.controllers(folder, api))
    return api


def _lease(s, spec):
    metadata = {"name": LEASE, "namespace": s.name}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


async def _holder(s):
    return (await s.cluster.get(Ref("Lease", s.name, LEASE)))["spec"].get("holderIdentity", "")


async def _is(asked, wanted):
    return await asked == wanted


async def _observed(s, generation, name="demo"):
    return (await s.cluster.get(s.ref(name))).get("status", {}).get("observedGeneration") == generation


async def _event(s, reason, kind):
    events = (await s.cluster.list("Event", s.name)).items
    return any(e["reason"] == reason and e["type"] == kind and e["regarding"]["name"] == "demo" for e in events)


async def _get(operator, path):
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(f"http://127.0.0.1:{operator.port}{path}")


async def _status(operator, path):
    return (await _get(operator, path)).status_code


async def _metric(operator, name, **labels):
    return await metric(operator.port, name, **labels)


async def _told(operator):
    return await _metric(operator, "legato_operator_watch_events_total", kind="PodDisruptionBudget")


async def _more_told(operator, before):
    return await _told(operator) > before
