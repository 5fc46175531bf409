"""A revision that fails, on a real API server: what is good is kept there, so that another operator goes on with it."""

from legato_operator.api import conditions
from legato_operator.cluster import Ref

UP_TO_DATE = ("False", conditions.UP_TO_DATE)
FAILED = ("False", conditions.ROLLOUT_FAILED)


async def _progressing(s):
    return await s.condition("Progressing")


async def _kept(s):
    """The kept revisions, by the pool that owns them."""
    items = (await s.cluster.list("ControllerRevision", s.name, {"serving.legato.dev/service": "demo"})).items
    return {item["metadata"]["ownerReferences"][0]["name"]: item for item in items}


def _chunk(template):
    arguments = template["spec"]["containers"][0]["args"]
    return int(arguments[arguments.index("--chunk-tokens") + 1])


def _service(build, chunk, **rollout):
    return build(engine={"chunkTokens": chunk}, rollout=rollout)


async def _fail(s, name):
    """Tell of a pod what a kubelet tells of an image that cannot be."""
    waiting = {"reason": "InvalidImageName", "message": "couldn't parse it"}
    container = {"name": "worker", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}
    await s.wait(lambda: s.exists("Pod", name))
    await s.cluster.patch_status(Ref("Pod", s.name, name), status)


async def test_failed_revision_is_taken_back_by_whoever_leads_then(s, build):
    """Surge 0: the worker that was given up is made anew from the template that was kept."""
    surge = {"maxSurge": 0, "maxUnavailable": 1}
    async with s.operator():
        await s.make(_service(build, 512, **surge))

        async def whole():
            return await _progressing(s) == UP_TO_DATE and len(await _kept(s)) == 3

        await s.wait(whole)
        kept = await _kept(s)
        assert set(kept) == {"demo", "demo-prefill", "demo-decode"}
        assert _chunk(kept["demo-prefill"]["data"]) == _chunk(kept["demo-decode"]["data"]) == 512
        s.kubelet.schedules = False  # nothing that is made from here on starts
        await s.make(_service(build, 256, **surge))
        await s.wait(lambda: _is_new(s, "demo-prefill-0"))
        await _fail(s, "demo-prefill-0")

        async def stopped():
            return await _progressing(s) == FAILED

        await s.wait(stopped)
        assert {_chunk(pod) for pod in (await s.pods("decode")).values()} == {512}
        assert await s.condition("Ready") == ("True", conditions.DEGRADED), "and no surge to keep one"
    async with s.operator("two"):
        await s.make(_service(build, 256, autoRollback=True, **surge))

        async def taken_back():
            return [_chunk(pod) for pod in (await s.pods("prefill")).values()] == [512]

        await s.wait(taken_back)
        s.kubelet.schedules = True
        await s.wait(s.ready)
        assert await _progressing(s) == FAILED
        await s.make(_service(build, 128, autoRollback=True, **surge))

        async def mended():
            kept = await _kept(s)
            return await _progressing(s) == UP_TO_DATE and _chunk(kept["demo-decode"]["data"]) == 128

        await s.wait(mended)


async def _is_new(s, name):
    pods = await s.pods("prefill")
    return name in pods and _chunk(pods[name]) == 256
