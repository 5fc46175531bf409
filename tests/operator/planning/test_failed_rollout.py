"""A revision that cannot come up, on the local cluster: the old one serves on, and goes on where the manifest says."""

from legato_operator.api import conditions

BROKEN, MENDED = 333, 256
FAILED = ("False", conditions.ROLLOUT_FAILED)


async def _settled(f):
    return await f.is_ready() and await f.condition("Progressing") == ("False", conditions.UP_TO_DATE)


async def _workers(f):
    """Uid and chunk tokens of every worker, by name."""
    found = {**await f.pods("prefill"), **await f.pods("decode")}
    return {name: (pod["metadata"]["uid"], _chunk(pod)) for name, pod in found.items()}


def _chunk(pod):
    command = pod["spec"]["containers"][0]["command"]
    return int(command[command.index("--chunk-tokens") + 1])


def _service(build, chunk=512, **rollout):
    return build(engine={"chunkTokens": chunk}, rollout=rollout)


async def test_old_workers_serve_on_until_the_manifest_is_set_back_or_mended(f, build):
    """Set back, it leaves them as they are."""
    f.steer("argument", "crash", str(BROKEN))
    await f.apply(_service(build))
    await f.wait(lambda: _settled(f))
    before = await _workers(f)
    await f.apply(_service(build, BROKEN))
    await f.wait(lambda: f.condition("Progressing"), FAILED)
    assert await f.is_ready()
    assert before.items() <= (await _workers(f)).items()
    assert await f.ready("prefill") | await f.ready("decode") == set(before)
    assert f"cannot work with {BROKEN}" in (await f.conditions())["Progressing"]["message"]
    await f.apply(_service(build))
    await f.wait(lambda: _settled(f))
    assert await _workers(f) == before
    await f.apply(_service(build, BROKEN))
    await f.wait(lambda: f.condition("Progressing"), FAILED)
    await f.apply(_service(build, MENDED))
    await f.wait(lambda: _settled(f))
    assert {chunk for _, chunk in (await _workers(f)).values()} == {MENDED}


async def test_failed_revision_is_taken_back_and_not_tried_again(f, build):
    """Without surge a worker was given up for it, which comes back. Later ones are made like it."""
    f.steer("argument", "refuse", str(BROKEN))
    rollout = {"maxSurge": 0, "maxUnavailable": 1, "autoRollback": True}
    await f.apply(_service(build, **rollout))
    await f.wait(lambda: _settled(f))
    await f.apply(_service(build, BROKEN, **rollout))

    async def taken_back():
        found = {chunk for _, chunk in (await _workers(f)).values()}
        ready = await f.ready("prefill") | await f.ready("decode")
        return (
            await f.condition("Progressing") == FAILED
            and found == {512}
            and ready == {"demo-prefill-0", "demo-decode-0"}
        )

    await f.wait(taken_back)
    await f.scale("decode", 2)
    await f.wait(lambda: f.ready("decode"), {"demo-decode-0", "demo-decode-1"})
    assert {chunk for _, chunk in (await _workers(f)).values()} == {512}
    status = (await f.service())["status"]["pools"]["prefill"]
    assert status["failedRevision"] == status["revision"]
    await f.apply(_service(build, MENDED, **rollout))
    await f.wait(lambda: _settled(f))
    assert {chunk for _, chunk in (await _workers(f)).values()} == {MENDED}
    assert "failure" not in (await f.service())["status"]["pools"]["prefill"]
