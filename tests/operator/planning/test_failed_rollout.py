"""A revision that cannot come up, on the local cluster: the old one serves on, and goes on where the manifest says."""

import pytest

from legato_operator.api import conditions

BROKEN, MENDED = 333, 256


async def _told(f):
    """Status and reason of the conditions."""
    told = (await f.service()).get("status", {}).get("conditions", ())
    return {condition["type"]: (condition["status"], condition["reason"]) for condition in told}


async def _settled(f):
    told = await _told(f)
    return told.get("Ready", ("",))[0] == "True" and told.get("Progressing") == ("False", conditions.UP_TO_DATE)


async def _failed(f):
    return (await _told(f)).get("Progressing") == ("False", conditions.ROLLOUT_FAILED)


async def _workers(f):
    """Uid and chunk tokens of every worker, by name."""
    found = {**await f.pods("prefill"), **await f.pods("decode")}
    return {name: (pod["metadata"]["uid"], _chunk(pod)) for name, pod in found.items()}


def _chunk(pod):
    command = pod["spec"]["containers"][0]["command"]
    return int(command[command.index("--chunk-tokens") + 1])


def _service(build, chunk=512, **rollout):
    return build(engine={"chunkTokens": chunk}, rollout=rollout)


async def _apply(f, item):
    await f.cluster.store.apply(item, "user", force=True)


@pytest.mark.parametrize("kind", ["refuse", "crash"])
async def test_old_workers_serve_on_until_the_manifest_is_mended(f, build, kind):
    f.steer("argument", kind, str(BROKEN))
    await _apply(f, _service(build))
    await f.wait(lambda: _settled(f))
    before = await _workers(f)
    await _apply(f, _service(build, BROKEN))
    await f.wait(lambda: _failed(f))
    assert (await _told(f))["Ready"][0] == "True"
    assert before.items() <= (await _workers(f)).items()
    assert await f.ready("prefill") | await f.ready("decode") == set(before)
    progressing = conditions.find((await f.service())["status"], "Progressing")
    assert f"cannot work with {BROKEN}" in progressing["message"]
    await _apply(f, _service(build, MENDED))
    await f.wait(lambda: _settled(f))
    assert {chunk for _, chunk in (await _workers(f)).values()} == {MENDED}


async def test_manifest_that_is_set_back_leaves_the_old_workers_as_they_are(f, build):
    f.steer("argument", "refuse", str(BROKEN))
    await _apply(f, _service(build))
    await f.wait(lambda: _settled(f))
    before = await _workers(f)
    await _apply(f, _service(build, BROKEN))
    await f.wait(lambda: _failed(f))
    await _apply(f, _service(build))
    await f.wait(lambda: _settled(f))
    assert await _workers(f) == before


async def test_failed_revision_is_taken_back_and_not_tried_again(f, build):
    """Without surge a worker was given up for it, which comes back. Later ones are made like it."""
    f.steer("argument", "refuse", str(BROKEN))
    rollout = {"maxSurge": 0, "maxUnavailable": 1, "autoRollback": True}
    await _apply(f, _service(build, **rollout))
    await f.wait(lambda: _settled(f))
    await _apply(f, _service(build, BROKEN, **rollout))

    async def taken_back():
        found = {chunk for _, chunk in (await _workers(f)).values()}
        ready = await f.ready("prefill") | await f.ready("decode")
        return await _failed(f) and found == {512} and ready == {"demo-prefill-0", "demo-decode-0"}

    await f.wait(taken_back)
    desired = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": "demo-decode"},
        "spec": {"replicas": 2},
    }
    await f.cluster.store.apply(desired, "legato-scaler", force=True)

    async def scaled():
        return await f.ready("decode") == {"demo-decode-0", "demo-decode-1"}

    await f.wait(scaled)
    assert {chunk for _, chunk in (await _workers(f)).values()} == {512}
    status = (await f.service())["status"]["pools"]["prefill"]
    assert status["failedRevision"] == status["revision"]
    await _apply(f, _service(build, MENDED, **rollout))
    await f.wait(lambda: _settled(f))
    assert {chunk for _, chunk in (await _workers(f)).values()} == {MENDED}
    assert "failure" not in (await f.service())["status"]["pools"]["prefill"]
