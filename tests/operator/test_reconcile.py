"""The whole loop on the local cluster: what is applied is what runs, through scaling, rollout, faults and the end."""

import asyncio
import json
import os
import signal
from pathlib import Path

import psutil

from legato_operator.apply import release
from legato_operator.clock import SystemClock
from legato_operator.cluster import Ref, is_leaving
from legato_operator.waking import DemandWaker

SCALER = "legato-scaler"


async def _is_ready(f):
    conditions = (await f.service()).get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def _scale(f, pool, replicas):
    desired = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": f"demo-{pool}"},
        "spec": {"replicas": replicas},
    }
    await f.cluster.store.apply(desired, SCALER, force=True)


async def test_service_becomes_ready(f, build):
    """One prefill worker, one decode worker and a gateway; the token is a Secret; conditions say so."""
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is_ready(f))
    assert set(await f.pods()) == {"demo-prefill-0", "demo-decode-0", "demo-gateway-0"}
    assert len((await f.cluster.store.list("Secret")).items) == 1

    async def told():
        status = (await f.service())["status"]
        return {c["type"]: c["status"] for c in status["conditions"]} == {
            "Ready": "True",
            "PrefillReady": "True",
            "DecodeReady": "True",
            "GatewayReady": "True",
            "KVTransportReady": "True",
            "Progressing": "False",
        }

    await f.wait(told)
    assert (await f.service())["status"]["observedGeneration"] == 1


async def test_no_prefill_pool_makes_unified_workers(f, build):
    await f.cluster.store.apply(build(scaling={"prefill": {"max": 0}}), "user")
    await f.wait(lambda: _is_ready(f))
    pods = await f.pods()
    assert set(pods) == {"demo-decode-0", "demo-gateway-0"}
    command = pods["demo-decode-0"]["spec"]["containers"][0]["command"]
    assert command[command.index("--role") + 1] == "unified"


class _HoldingGateways:
    """None holds a request. Counts who waits for one."""

    def __init__(self):
        self.waiting = 0

    async def holds(self, address, tokens, tls=None):
        assert tokens[0]
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1


async def test_gateways_of_a_service_at_zero_are_waited_for_until_it_ends(fakes, build):
    gateways = _HoldingGateways()
    async with fakes(waker=DemandWaker(gateways, SystemClock())) as f:
        await f.cluster.store.apply(build(scaling={"prefill": {"min": 0}, "decode": {"min": 0}}), "user")
        await f.wait(lambda: _is_ready(f))
        assert not gateways.waiting
        for pool in ("prefill", "decode"):
            await _scale(f, pool, 0)
        await f.wait(lambda: _is_true(gateways.waiting == 1))
        await f.cluster.store.delete(Ref("InferenceService", "default", "demo"))
        await f.wait(lambda: _is_true(not gateways.waiting))


async def test_gateways_of_a_service_that_is_gone_are_not_waited_for(fakes, build):
    """It ended between two passes."""
    gateways, ref = _HoldingGateways(), Ref("InferenceService", "default", "demo")
    waker = DemandWaker(gateways, SystemClock())
    async with fakes(reconciled=False, waker=waker) as f:
        waiting = asyncio.create_task(waker.run(lambda service: None))

        async def passed():
            await f.reconciler.reconcile(ref)
            return gateways.waiting == 1

        await f.cluster.store.apply(build(scaling={"prefill": {"min": 0}, "decode": {"min": 0}}), "user")
        await f.reconciler.reconcile(ref)
        for pool in ("prefill", "decode"):
            await _scale(f, pool, 0)
        await f.wait(passed)
        await f.cluster.store.delete(ref)
        await release(f.cluster.store, ref)
        assert await f.reconciler.reconcile(ref) is None
        await f.wait(lambda: _is_true(not gateways.waiting))
        waiting.cancel()
        await asyncio.wait((waiting,))


async def _is_true(value):
    return value


async def test_scale_down_drains_the_idlest_before_it_is_deleted(f, build):
    f.steer("demo-decode-0", "busy", "1")
    f.steer("demo-decode-1", "busy", "3")
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is_ready(f))
    await _scale(f, "decode", 2)
    await f.wait(lambda: _has_ready(f, "decode", {"demo-decode-0", "demo-decode-1"}))
    await _scale(f, "decode", 1)
    await f.wait(lambda: _exists(f.folder / "demo-decode-0.drained"))
    assert not is_leaving((await f.pods())["demo-decode-0"]), "still busy: it must not be deleted yet"
    f.steer("demo-decode-0", "busy", "0")
    await f.wait(lambda: _has_ready(f, "decode", {"demo-decode-1"}))
    assert not (f.folder / "demo-decode-1.drained").exists()


async def test_burst_while_two_workers_drain_recalls_both(f, build):
    """No pod is made, and both are in their pool's selector again."""
    names = {f"demo-decode-{number}" for number in range(4)}
    for name in names:
        f.steer(name, "busy", "1")
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is_ready(f))
    await _scale(f, "decode", 4)
    await f.wait(lambda: _has_ready(f, "decode", names))
    await _scale(f, "decode", 2)
    leaving = {"demo-decode-2", "demo-decode-3"}  # of equals the newest
    await f.wait(lambda: _are_marked(f, leaving))
    for name in leaving:
        await f.wait(lambda name=name: _exists(f.folder / f"{name}.drained"))
    assert await f.ready("decode") == names, "who drains stays ready, so that it serves at once again"
    await _scale(f, "decode", 4)
    await f.wait(lambda: _has_ready(f, "decode", names))
    await f.wait(lambda: _are_marked(f, set()))
    pods = await f.pods("decode")
    assert {pod["metadata"]["labels"]["serving.legato.dev/serving"] for pod in pods.values()} == {"true"}
    assert all((f.folder / f"{name}.recalled").exists() for name in leaving)
    assert [len(f.starts(name)) for name in sorted(names)] == [1] * 4


async def test_worker_that_was_told_to_end_while_it_drained_is_not_waited_for(f, build):
    """Its process refuses to serve again, so another worker starts."""
    for name in ("demo-decode-0", "demo-decode-1"):
        f.steer(name, "busy", "1")
    f.steer("demo-decode-1", "stubborn")
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is_ready(f))
    await _scale(f, "decode", 2)
    await f.wait(lambda: _has_ready(f, "decode", {"demo-decode-0", "demo-decode-1"}))
    await _scale(f, "decode", 1)
    await f.wait(lambda: _are_marked(f, {"demo-decode-1"}))
    os.kill(f.starts("demo-decode-1")[0], signal.SIGTERM)
    await _scale(f, "decode", 2)
    await f.wait(lambda: _are_ready(f, "decode", {"demo-decode-0", "demo-decode-2"}))
    assert not (f.folder / "demo-decode-1.recalled").exists()
    f.steer("demo-decode-1", "busy", "0")
    os.kill(f.starts("demo-decode-1")[0], signal.SIGKILL)


async def test_drain_deadline_ends_a_worker_that_stays_busy(f, build):
    f.steer("demo-decode-0", "busy", "1")
    f.steer("demo-decode-1", "busy", "1")
    await f.cluster.store.apply(build(drain={"deadline": "200ms"}), "user")
    await f.wait(lambda: _is_ready(f))
    await _scale(f, "decode", 2)
    await f.wait(lambda: _has_ready(f, "decode", {"demo-decode-0", "demo-decode-1"}))
    await _scale(f, "decode", 1)
    await f.wait(lambda: _has_ready(f, "decode", {"demo-decode-0"}))  # equally busy: the newest goes


async def test_changed_engine_settings_roll_out_without_a_gap(f, build):
    """With surge 1 and unavailable 0 there is a ready decode worker at every moment."""
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is_ready(f))
    before = {name: pod["metadata"]["uid"] for name, pod in (await f.pods()).items()}
    await f.cluster.store.apply(build(engine={"chunkTokens": 256}), "user")

    async def rolled():
        assert await f.ready("decode"), "no decode worker is ready"
        pods = await f.pods()
        fresh = {n for n, p in pods.items() if p["metadata"]["uid"] not in before.values()}
        return len(pods) == 3 and len(fresh) == 2

    await f.wait(rolled)
    for pool in ("prefill", "decode"):
        (pod,) = (await f.pods(pool)).values()
        assert "256" in pod["spec"]["containers"][0]["command"]


async def test_changed_gateway_setting_takes_over_without_a_gap(f, build):
    """A ready gateway at every moment; the old one ends only after that."""
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is_ready(f))
    (first,) = await f.pods("gateway")
    await f.cluster.store.apply(build(gateway={"defaultDeadline": "1m"}), "user")

    async def replaced():
        assert await f.ready("gateway"), "no gateway is ready"
        return first not in await f.pods("gateway")

    await f.wait(replaced)
    (pod,) = (await f.pods("gateway")).values()
    command = pod["spec"]["containers"][0]["command"]
    assert command[command.index("--default-deadline") + 1] == "1m"


async def test_killed_worker_comes_back_and_the_workers_file_follows(f, build):
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is_ready(f))
    first = _listed(await _workers_file(f))
    assert set(first) == {"demo-decode-0", "demo-prefill-0"}
    os.kill(f.starts("demo-decode-0")[0], signal.SIGKILL)

    async def back():
        listed = _listed(await _workers_file(f))
        return set(listed) == set(first) and listed["demo-decode-0"] != first["demo-decode-0"]

    await f.wait(back)
    await f.wait(lambda: _has_ready(f, "decode", {"demo-decode-0"}))
    assert len(f.starts("demo-decode-0")) == 2


async def test_deleting_ends_gateway_first_and_leaves_nothing(f, build):
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is_ready(f))
    since = (await f.cluster.store.list("Pod")).version
    await f.cluster.store.delete(Ref("InferenceService", "default", "demo"))
    gone = []
    async for event in f.cluster.store.watch("Pod", since):
        if event.type == "DELETED":
            gone.append(event.object["metadata"]["name"])
        if len(gone) == 3:
            break
    assert gone[0] == "demo-gateway-0"
    for kind in ("InferenceService", "WorkerPool", "ControllerRevision", "Secret"):
        await f.wait(lambda kind=kind: _none(f, kind))


async def test_worker_that_refuses_is_told(f, build):
    f.steer("demo-decode-0", "refuse", "weights.gguf is truncated")
    await f.cluster.store.apply(build(), "user")

    async def told():
        conditions = (await f.service()).get("status", {}).get("conditions", ())
        return any(
            c["type"] == "DecodeReady" and c["reason"] == "WorkerRefused" and "truncated" in c["message"]
            for c in conditions
        )

    await f.wait(told)


async def test_not_available_is_told_and_starts_nothing(f, build):
    await f.cluster.store.apply(build(engine={"numerics": "Invariant"}), "user")

    async def told():
        conditions = (await f.service()).get("status", {}).get("conditions", ())
        return {c["type"]: c["reason"] for c in conditions} == {"Ready": "NotAvailable", "Progressing": "NotAvailable"}

    await f.wait(told)
    assert not await f.pods()


async def _are_ready(f, pool, names):
    return await f.ready(pool) == names


async def _are_marked(f, names):
    """Whether these workers were chosen to leave, and no others."""
    mark = "serving.legato.dev/draining-since"
    return {n for n, p in (await f.pods()).items() if mark in p["metadata"].get("annotations", {})} == names


async def _has_ready(f, pool, names):
    return await f.ready(pool) == names and set(await f.pods(pool)) == names


async def _exists(path):
    return path.exists()


async def _none(f, kind):
    return not (await f.cluster.store.list(kind)).items


async def _workers_file(f):
    (gateway,) = (await f.pods("gateway")).values()
    pid = gateway["status"]["pid"]
    arguments = psutil.Process(pid).cmdline()
    return arguments[arguments.index("--workers-file") + 1]


def _listed(path):
    return {entry["worker"]: entry["address"] for entry in json.loads(Path(path).read_text())}
