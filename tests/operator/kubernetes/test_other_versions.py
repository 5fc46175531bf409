"""Objects that another version of the CRDs let in: they stop nobody, can be mended, and can go."""

import asyncio

import control_plane
import pytest
import yaml

ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TORN = {
    "observedGeneration": 1,
    "conditions": [{"type": "Ready", "status": "False"}, {"type": "Progressing", "state": "?"}],
    "pools": {"prefill": {"ready": 1, "desired": 1, "gone": {"by": "now"}}},
    "phase": "Running",
}


@pytest.fixture
def loose(own, tmp_path):
    """An API server with controllers, whose InferenceServices may hold anything."""
    (file,) = [each for each in control_plane.CRDS if each.name == "inferenceservices.yaml"]
    definition = yaml.safe_load(file.read_text())
    schema = definition["spec"]["versions"][0]["schema"]
    schema["openAPIV3Schema"] = {"type": "object", "properties": {"spec": ANYTHING, "status": ANYTHING}}
    (tmp_path / "loose.yaml").write_text(yaml.safe_dump(definition))
    own.install([tmp_path / "loose.yaml"])
    return own


async def test_what_another_version_stored_stops_nobody_and_can_be_mended(loose, space, build):
    async with space(loose) as s:
        await s.make(build(), "good")
        await s.make(build(), "torn")
        await _store_status(s, "torn", TORN)
        for name in ("older", "leaving"):
            await s.make(build(engine={"blockSize": 17, "gone": 1}), name)
        async with s.operator():
            await s.serve(build(engine={"later": 1}, later={"on": True}), "newer")
        assert "does not know spec.engine.later, spec.later" in await s.message(name="newer")
        await asyncio.to_thread(loose.install, control_plane.CRDS)
        await s.wait(lambda: _refuses(s))
        async with s.operator():
            for name in ("good", "torn"):
                await s.wait(lambda name=name: s.is_settled(name))
            for name in ("older", "leaving"):
                await s.wait(lambda name=name: s.condition("Progressing", name), ("False", "Invalid"))
            await s.serve(build(), "older")
            await s.end("leaving")


async def _store_status(s, name, status):
    """Stores a status once the looser schema is in force."""

    async def stored():
        code, answer = await s.call("PATCH", f"{s.path()}/{name}/status", {"status": status}, merge=True)
        return code == 200 and answer["status"] == status

    await s.wait(stored)


async def _refuses(s):
    """True if the present schema is in force."""
    body = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "x"}}
    return (await s.call("POST", f"{s.path()}?dryRun=All", body))[0] == 422
