"""What may go wrong around the operator, on a real API server: it recovers by itself and loses nothing."""

import asyncio
import contextlib
from pathlib import Path

import control_plane

from legato_operator.cluster import Ref

LEASE = "legato-operator"
CRDS = Path(__file__).parents[3] / "crds"


async def test_leader_whose_lease_was_taken_does_and_tells_nothing_until_it_has_it_again(s, build):
    ready = {"service": "demo", "type": "Ready", "status": "True"}
    async with s.operator("one") as one:
        await s.make(build())
        await s.wait(lambda: one.metric("condition", **ready), 1)
        await s.wait(lambda: one.metric("pool_ready_replicas", pool="decode"), 1)
        taken = {"holderIdentity": "other", "leaseDurationSeconds": 3600}
        await s.cluster.apply(_lease(s, taken), "thief", force=True)
        await s.wait(lambda: one.metric("leader"), 0)
        await s.wait(lambda: one.metric("condition"), 0)
        before, told = await one.metric("reconciles_total", result="done"), await _told(one)
        await s.cluster.delete(Ref("PodDisruptionBudget", s.name, "demo-decode"))
        await s.wait(lambda: _more_told(one, told))
        assert await one.metric("reconciles_total", result="done") == before
        assert not await s.exists("PodDisruptionBudget", "demo-decode")
        await s.cluster.apply(_lease(s, {"leaseDurationSeconds": 1}), "thief", force=True)
        await s.wait(lambda: s.exists("PodDisruptionBudget", "demo-decode"))
        await s.wait(lambda: one.metric("condition", **ready), 1)
        await s.cluster.delete(s.ref())
        await s.wait(lambda: one.metric("condition"), 0)


async def test_killed_api_server_is_survived(space, build, programs):
    with contextlib.ExitStack() as stack:
        api = await asyncio.to_thread(_own_server, stack, programs)
        async with space(api) as s, s.operator() as one:
            await s.make(build())
            await s.wait(s.ready)
            await asyncio.to_thread(api.kill)
            await s.wait(lambda: one.metric("leader"), 0)
            await asyncio.to_thread(api.start)
            await s.cluster.delete(Ref("Pod", s.name, "demo-decode-0"))
            await s.make(build(engine={"chunkTokens": 256}))
            await s.wait(s.is_current)
            await s.wait(s.ready)
            assert not one.task.done()
            assert (await one.get("/healthz")).status_code == 200


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
    await s.wait(lambda: s.is_current("good"))
    await s.wait(lambda: s.ready("good"))
    assert await s.exists("Service", "stranger")


async def test_refusal_of_the_api_server_is_told_and_all_else_is_done(s, operator, build):
    """A quota without room for pods: the rest is made, and the condition says what was refused."""
    await s.cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": s.name}}, "x"
    )
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/serviceaccounts": "0"}}}
    status, answer = await s.call("POST", "resourcequotas", quota)
    assert status < 300, answer
    used = {"status": {"hard": {"count/serviceaccounts": "0"}, "used": {"count/serviceaccounts": "0"}}}
    status, answer = await s.call("PATCH", "resourcequotas/none/status", used, merge=True)
    assert status < 300, answer
    await s.make(build())
    await s.wait(lambda: s.condition("Progressing"), ("False", "APIRefused"))
    await s.wait(lambda: s.exists("Service", "demo"))
    await s.wait(lambda: s.has_warning("APIRefused"))
    assert (await s.call("DELETE", "resourcequotas/none"))[0] == 200
    await s.wait(s.ready)
    await s.wait(lambda: s.condition("Progressing"), ("False", "UpToDate"))


_PORT = {"ports": [{"port": 1}]}


def _own_server(stack, folder):
    api = stack.enter_context(control_plane.running(folder))
    api.install(sorted(CRDS.glob("*.yaml")))
    stack.enter_context(control_plane.controllers(folder, api))
    return api


def _lease(s, spec):
    metadata = {"name": LEASE, "namespace": s.name}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


async def _told(operator):
    return await operator.metric("watch_events_total", kind="PodDisruptionBudget")


async def _more_told(operator, before):
    return await _told(operator) > before
