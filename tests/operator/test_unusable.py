"""A manifest that cannot be had: the last one that could goes on being reconciled, and the status says both."""

from legato_operator.cluster import uid_of

UNAVAILABLE = {"engine": {"numerics": "Invariant"}}, "NotAvailable", "spec.engine.numerics: "
INVALID = {"engine": {"blockSize": 17}}, "Invalid", "spec.engine.blockSize: "
CONTRADICTORY = {"scaling": {"decode": {"min": 2, "max": 1}}}, "Invalid", "spec.scaling.decode: "


async def test_unusable_edit_stops_neither_healing_nor_scaling_nor_drains(f, build):
    edit, reason, path = INVALID
    f.steer("demo-decode-1", "busy", "1")
    await f.apply(build())
    await f.wait(lambda: f.condition("Ready"), ("True", "AllReady"))
    await f.scale("decode", 2)
    await f.wait(lambda: f.has("decode", "demo-decode-0", "demo-decode-1"))
    f.steer("demo-decode-0", "busy", "9")
    await f.scale("decode", 1)
    await f.wait((f.folder / "demo-decode-1.drained").exists)
    await f.apply(build(**edit))
    await f.wait(lambda: f.condition("Progressing"), ("False", reason))
    f.steer("demo-decode-1", "busy", "0")
    await f.wait(lambda: f.has("decode", "demo-decode-0"))  # its drain was finished
    (lost,) = (await f.pods("decode")).values()
    await f.delete("Pod", "demo-decode-0")
    await f.wait(lambda: _is_replaced(f, lost))
    await f.wait(f.is_ready)
    await f.scale("decode", 3)
    await f.wait(lambda: _ready(f, 3))
    status = (await f.service())["status"]
    assert status["observedGeneration"] == 2
    told = await f.conditions()
    assert {kind: c["observedGeneration"] for kind, c in told.items()} == {
        **dict.fromkeys(("Ready", "PrefillReady", "DecodeReady", "GatewayReady", "KVTransportReady"), 1),
        "Progressing": 2,
    }
    assert told["Progressing"]["message"].startswith(path)
    assert "generation 1 stays in use" in told["Progressing"]["message"]


async def test_fixed_manifest_is_taken_up_at_once_and_one_alone_is_kept(f, build):
    await f.apply(build())
    await f.wait(f.is_ready)
    await f.apply(build(**UNAVAILABLE[0]))
    await f.wait(lambda: f.condition("Progressing"), ("False", "NotAvailable"))
    fixed = build(scaling={"decode": {"min": 2}})
    await f.apply(fixed)
    await f.wait(lambda: _ready(f, 2))
    await f.wait(lambda: f.condition("Progressing"), ("False", "Capped"))  # its scaler desires one
    await f.wait(lambda: _keeps(f, 3, fixed["spec"]))


async def test_new_service_that_is_unusable_is_not_ready_and_says_why(f, build):
    for edit, reason, path in (UNAVAILABLE, INVALID, CONTRADICTORY):
        await f.apply(build(**edit))
        await f.wait(lambda path=path: _says(f, "Progressing", path))
        for kind in ("Ready", "Progressing"):
            assert await f.condition(kind) == ("False", reason)
            assert (await f.conditions())[kind]["message"].startswith(path)
    assert not await f.pods()
    await f.apply(build())
    await f.wait(f.is_ready)


async def test_service_with_an_unusable_manifest_ends_in_order(f, build):
    """Draining pods have until the deadline of the last usable manifest."""
    await f.apply(build())
    await f.wait(f.is_ready)
    await f.apply(build(**INVALID[0]))
    await f.wait(lambda: f.condition("Progressing"), ("False", "Invalid"))
    await f.delete("InferenceService", "demo")
    for kind in ("Pod", "InferenceService", "ControllerRevision"):
        await f.wait(lambda kind=kind: f.has_none(kind))


async def _ready(f, count):
    return len(await f.ready("decode")) == count


async def _is_replaced(f, lost):
    (pod, *more) = (await f.pods("decode")).values() or (lost,)
    return not more and uid_of(pod) != uid_of(lost) and await _ready(f, 1)


async def _keeps(f, generation, spec):
    kept = (await f.cluster.store.list("ControllerRevision", "default")).items
    role = "serving.legato.dev/role"
    found = [(i["revision"], i["data"]) for i in kept if i["metadata"]["labels"][role] == "manifest"]
    return found == [(generation, spec)]


async def _says(f, kind, start):
    return (await f.conditions()).get(kind, {}).get("message", "").startswith(start)
