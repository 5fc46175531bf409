"""Objects that another version of the CRDs let in: they stop nobody, can be mended, and can go."""

import asyncio
import contextlib
from pathlib import Path

import control_plane
import yaml

from legato_operator.cluster import Ref

CRDS = Path(__file__).parents[3] / "crds"
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}?fieldManager=test&force=true"
TORN = {
    "observedGeneration": 1,
    "conditions": [{"type": "Ready", "status": "False"}, {"type": "Progressing", "state": "?"}],
    "pools": {"prefill": {"ready": 1, "desired": 1, "gone": {"by": "now"}}},
    "phase": "Running",
}


async def test_what_another_version_stored_stops_nobody_and_can_be_mended(space, build, programs):
    with contextlib.ExitStack() as stack:
        api = await asyncio.to_thread(_loose_server, stack, programs)
        async with space(api) as s:
            await s.make(build(), "good")
            await s.make(build(), "torn")
            await _store_status(s, "torn", TORN)
            for name in ("older", "leaving"):
                await s.make(build(engine={"blockSize": 17, "gone": 1}), name)
            await s.make(build(engine={"later": 1}, later={"on": True}), "newer")
            async with s.operator():
                await s.wait(lambda: s.ready("newer"))
                await s.wait(lambda: s.condition("Progressing", "newer"), ("False", "UpToDate"))
            told = (await s.cluster.get(s.ref("newer")))["status"]["conditions"]
            messages = {condition["type"]: condition["message"] for condition in told}
            assert "does not know spec.engine.later, spec.later" in messages["Progressing"]
            await asyncio.to_thread(api.install, sorted(CRDS.glob("*.yaml")))
            await s.wait(lambda: _refused(s))
            async with s.operator():
                for name in ("good", "torn"):
                    await s.wait(lambda name=name: s.ready(name))
                    await s.wait(lambda name=name: s.condition("Progressing", name), ("False", "UpToDate"))
                for name in ("older", "leaving"):
                    await s.wait(lambda name=name: s.condition("Progressing", name), ("False", "Invalid"))
                await s.make(build(), "older")
                await s.wait(lambda: s.ready("older"))
                await s.cluster.delete(s.ref("leaving"))
                await s.wait(lambda: s.is_gone(name="leaving"))


async def test_child_edited_beyond_recognition_is_mended_and_stops_nobody(s, operator, build):
    """Owner references, labels, the hash of what was applied and the spec of owned objects, all by hand."""
    for name in ("good", "torn"):
        await s.make(build(), name)
        await s.wait(lambda name=name: s.ready(name))
    mark = {"serving.legato.dev/applied-hash": "nonsense"}
    await s.edit("WorkerPool", "torn-decode", lambda pool: pool["metadata"].update(annotations=mark))
    await s.edit("Service", "torn", _break_service)
    spec = {"maxUnavailable": "100%", "selector": {}}
    await s.edit("PodDisruptionBudget", "torn-decode", lambda budget: budget.update(spec=spec))
    await s.wait(lambda: _mended(s))
    await s.make(build(engine={"chunkTokens": 64}), "good")
    await s.wait(lambda: s.condition("Progressing", "good"), ("False", "UpToDate"))
    await s.wait(lambda: s.ready("torn"))


def _break_service(front):
    front["metadata"] |= {"labels": {"serving.legato.dev/service": "torn"}, "annotations": {}}
    front["metadata"].pop("ownerReferences", None)
    front["spec"]["ports"] = [{"port": 1, "name": "x"}, {"port": 2, "name": "y"}]
    front["spec"]["selector"] = {}


def _loose_server(stack, folder):
    """An API server with controllers, whose custom resources may hold anything."""
    api = stack.enter_context(control_plane.running(folder))
    api.install(sorted(CRDS.glob("*.yaml")))
    definition = yaml.safe_load((CRDS / "inferenceservices.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]
    schema["openAPIV3Schema"] = {"type": "object", "properties": {"spec": ANYTHING, "status": ANYTHING}}
    path = PATH.format(definition["metadata"]["name"])
    status, answer = api.call("PATCH", path, definition, "application/apply-patch+yaml")
    assert status < 300, answer
    stack.enter_context(control_plane.controllers(folder, api))
    return api


async def _store_status(s, name, status):
    """Once the looser schema is in force."""
    path = f"/apis/serving.legato.dev/v1alpha1/namespaces/{s.name}/inferenceservices/{name}/status"

    async def stored():
        body = {"status": status}
        code, answer = await s.call("PATCH", path, body, merge=True)
        return code == 200 and answer["status"] == status

    await s.wait(stored)


async def _refused(s):
    """Whether the schema of today is in force."""
    path = f"/apis/serving.legato.dev/v1alpha1/namespaces/{s.name}/inferenceservices"
    body = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "x"}}
    code, _ = await s.call("POST", f"{path}?dryRun=All", body)
    return code == 422


async def _mended(s):
    front = await s.cluster.get(Ref("Service", s.name, "torn"))
    budget = await s.cluster.get(Ref("PodDisruptionBudget", s.name, "torn-decode"))
    names = [port["port"] for port in front["spec"]["ports"]]
    return 80 in names and front["spec"].get("selector") and budget["spec"].get("minAvailable") == 0
