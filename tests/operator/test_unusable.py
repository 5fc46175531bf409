"""A manifest that cannot be had: the last one that could goes on being reconciled, and the status says both."""

import pytest

from legato_operator.cluster import Ref

UNUSABLE = {
    "not available": ({"decode": {"parallelism": {"tensor": 2}}}, "NotAvailable", "spec.decode.parallelism.tensor: "),
    "invalid": ({"engine": {"blockSize": 17}}, "Invalid", "spec.engine.blockSize: "),
    "contradicts itself": ({"scaling": {"decode": {"min": 2, "max": 1}}}, "Invalid", "spec.scaling.decode: "),
}


@pytest.mark.parametrize(("edit", "reason", "path"), UNUSABLE.values(), ids=UNUSABLE)
async def test_unusable_edit_stops_neither_healing_nor_scaling_nor_drains(f, build, edit, reason, path):
    f.steer("demo-decode-1", "busy", "1")
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is(f, "Ready", "True", "AllReady"))
    await _scale(f, 2)
    await f.wait(lambda: _decodes(f, {"demo-decode-0", "demo-decode-1"}))
    f.steer("demo-decode-0", "busy", "9")
    await _scale(f, 1)
    await f.wait(lambda: _exists(f.folder / "demo-decode-1.drained"))
    await f.cluster.store.apply(build(**edit), "user")
    await f.wait(lambda: _is(f, "Progressing", "False", reason))
    f.steer("demo-decode-1", "busy", "0")
    await f.wait(lambda: _decodes(f, {"demo-decode-0"}))  # its drain was finished
    await f.cluster.store.delete(Ref("Pod", "default", "demo-decode-0"))
    await f.wait(lambda: _is(f, "Ready", "False"))
    await f.wait(lambda: _is(f, "Ready", "True"))
    await _scale(f, 3)
    await f.wait(lambda: _ready(f, 3))
    status = (await f.service())["status"]
    assert status["observedGeneration"] == 2
    told = {c["type"]: c for c in status["conditions"]}
    assert {kind: c["observedGeneration"] for kind, c in told.items()} == {
        **dict.fromkeys(("Ready", "PrefillReady", "DecodeReady", "GatewayReady", "KVTransportReady"), 1),
        "Progressing": 2,
    }
    assert told["Progressing"]["message"].startswith(path)
    assert "generation 1 stays in use" in told["Progressing"]["message"]


async def test_fixed_manifest_is_taken_up_at_once_and_one_alone_is_kept(f, build):
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is(f, "Ready", "True"))
    await f.cluster.store.apply(build(decode={"parallelism": {"tensor": 2}}), "user")
    await f.wait(lambda: _is(f, "Progressing", "False", "NotAvailable"))
    fixed = build(scaling={"decode": {"min": 2}})
    await f.cluster.store.apply(fixed, "user")
    await f.wait(lambda: _ready(f, 2))
    await f.wait(lambda: _is(f, "Progressing", "False", "Capped"))  # its scaler desires one
    await f.wait(lambda: _keeps(f, 3, fixed["spec"]))


async def test_new_service_that_is_unusable_is_not_ready_and_says_why(f, build):
    for edit, reason, path in UNUSABLE.values():
        await f.cluster.store.apply(build(**edit), "user")
        await f.wait(lambda path=path: _says(f, "Progressing", path))
        for kind in ("Ready", "Progressing"):
            assert await _is(f, kind, "False", reason)
            assert await _says(f, kind, path)
    assert not await f.pods()
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is(f, "Ready", "True"))


async def test_service_with_an_unusable_manifest_ends_in_order(f, build):
    """What drains has until its deadline, as the last usable manifest says."""
    await f.cluster.store.apply(build(), "user")
    await f.wait(lambda: _is(f, "Ready", "True"))
    await f.cluster.store.apply(build(engine={"blockSize": 17}), "user")
    await f.wait(lambda: _is(f, "Progressing", "False", "Invalid"))
    await f.cluster.store.delete(Ref("InferenceService", "default", "demo"))
    for kind in ("Pod", "InferenceService", "ControllerRevision"):
        await f.wait(lambda kind=kind: _none(f, kind))


async def _condition(f, kind):
    conditions = (await f.service()).get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == kind), {})


async def _is(f, kind, status, reason=""):
    found = await _condition(f, kind)
    return found.get("status") == status and reason in ("", found["reason"])


async def _says(f, kind, start):
    return (await _condition(f, kind)).get("message", "").startswith(start)


async def _scale(f, replicas):
    spec = {"replicas": replicas}
    pool = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "WorkerPool", "metadata": {"name": "demo-decode"}}
    await f.cluster.store.apply({**pool, "spec": spec}, "legato-scaler", force=True)


async def _decodes(f, names):
    return await f.ready("decode") == names and set(await f.pods("decode")) == names


async def _ready(f, count):
    return len(await f.ready("decode")) == count


async def _keeps(f, generation, spec):
    kept = (await f.cluster.store.list("ControllerRevision", "default")).items
    role = "serving.legato.dev/role"
    found = [(i["revision"], i["data"]) for i in kept if i["metadata"]["labels"][role] == "manifest"]
    return found == [(generation, spec)]


async def _exists(path):
    return path.exists()


async def _none(f, kind):
    return not (await f.cluster.store.list(kind)).items
