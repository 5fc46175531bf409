"""Another version of the operator on a real API server: services take their turns, and nothing is lost meanwhile."""

import asyncio
import contextlib

from legato_operator.api import conditions
from legato_operator.cluster import Ref
from legato_operator.manifests import container

NAMES = ("one", "three", "two")
WORKERS = 2
QUICK = {"upgrade_pause": 0.3}
OLD = {"engine_image": "engine:1", "gateway_image": "gateway:1"}
NEW = {"engine_image": "engine:2", "gateway_image": "gateway:2"}
DONE = ("True", conditions.UP_TO_DATE)


class Watch:
    """What is seen of a namespace's pods, again and again: which services change, and which pools lose anything."""

    def __init__(self, space):
        self.space = space
        self.changing = []  # at each moment: the services of which pods of two versions run
        self.faults = []

    async def run(self):
        while True:
            pods = (await self.space.cluster.list("Pod", self.space.name)).items
            self.changing.append([name for name in NAMES if len({_version(p) for p in pods if _of(p) == name}) > 1])
            for name in NAMES:
                self._judge(name, [pod for pod in pods if _of(pod) == name and _role(pod) == "decode"])
            await asyncio.sleep(0.05)

    def _judge(self, name, pods):
        """With one worker more than desired, the surge, as many as desired serve at any time."""
        serving = [pod for pod in pods if _is_ready(pod) and not _is_leaving(pod)]
        if len(serving) < WORKERS or len(pods) > WORKERS + 1:
            self.faults.append((name, [(p["metadata"]["name"], _version(p), _is_leaving(p)) for p in pods]))


def _labels(pod):
    return pod["metadata"]["labels"]


def _of(pod):
    return _labels(pod)["serving.legato.dev/service"]


def _role(pod):
    return _labels(pod)["serving.legato.dev/role"]


def _version(pod):
    """Of its image, and of what the operator made beside that."""
    made = pod["spec"]["containers"][0]
    return int(made["image"].rpartition(":")[2]), made["readinessProbe"]["periodSeconds"]


def _is_leaving(pod):
    marked = "serving.legato.dev/draining-since" in pod["metadata"].get("annotations", {})
    return marked or "deletionTimestamp" in pod["metadata"]


def _is_ready(pod):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


@contextlib.asynccontextmanager
async def _watched(s):
    watch = Watch(s)
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.result()


async def _stand(s, build):
    """Three services that run what the first version made of them."""
    async with s.operator("one", **OLD, **QUICK):
        for name in NAMES:
            await s.make(_service(build), name)
        for name in NAMES:
            await s.wait(lambda name=name: s.ready(name))
            await s.wait(lambda name=name: _is(s.condition("Progressing", name), ("False", conditions.UP_TO_DATE)))
        await s.wait(lambda: _all_kept(s))


def _service(build, **changes):
    return build(scaling={"prefill": {"max": 0}, "decode": {"min": WORKERS}}, **changes)


async def _all_kept(s):
    """Whether it is stored what ran well: two templates and a manifest of each."""
    return len((await s.cluster.list("ControllerRevision", s.name, {"serving.legato.dev/service": ""})).items) >= 9


async def _is(asked, wanted):
    return await asked == wanted


async def _versions(s, name):
    return {_version(pod) for pod in (await s.cluster.list("Pod", s.name)).items if _of(pod) == name}


async def _in_turn(s):
    stored = [await s.cluster.get(s.ref(name)) for name in NAMES]
    return {item["metadata"]["name"] for item in stored if item["status"].get("upgradeTurn")}


async def test_services_take_their_turns_one_after_another(s, build, monkeypatch):
    """Another image, and another probe: no more than one service changes at a time, in it one worker of a pool; an
    operator that takes over in the middle goes on.
    """
    await _stand(s, build)
    monkeypatch.setitem(container._PROBES, "readinessProbe", ("/readyz", {"periodSeconds": 7}))
    async with _watched(s) as watch:
        async with s.operator("two", **NEW, **QUICK):
            await s.wait(lambda: _in_turn(s))
        async with s.operator("three", **NEW, **QUICK):
            for name in NAMES:
                await s.wait(lambda name=name: _is(s.condition("Upgraded", name), DONE))
                await s.wait(lambda name=name: _is(_versions(s, name), {(2, 7)}))
            await s.wait(lambda: _nobody_in_turn(s))
    assert watch.faults == []
    assert max(len(changing) for changing in watch.changing) == 1
    assert {name for changing in watch.changing for name in changing} == set(NAMES)


async def _nobody_in_turn(s):
    return not await _in_turn(s)


async def test_a_version_that_cannot_start_goes_no_further_than_one_service(s, build):
    """Told in the condition and by an Event. An edit of another service takes its turn all the same, and a version that
    can start goes on where the other one stopped.
    """
    await _stand(s, build)
    s.kubelet.asleep |= {f"{name}-decode-{WORKERS}" for name in NAMES}
    async with s.operator("two", **NEW, **QUICK):
        await s.wait(lambda: _in_turn(s))
        (first,) = await _in_turn(s)
        await s.wait(lambda: _break_new_pods(s, first))
        await s.wait(lambda: _is(s.condition("Upgraded", first), ("False", conditions.UPGRADE_FAILED)))
        assert await s.ready(first)
        await s.wait(lambda: _event(s, first))
        others = [name for name in NAMES if name != first]
        for name in others:
            assert await s.condition("Upgraded", name) == ("False", conditions.WAITING_FOR_TURN)
            assert await _versions(s, name) == {(1, 2)}
        s.kubelet.asleep = {f"{first}-decode-{WORKERS}"}
        await s.make(_service(build, engine={"chunkTokens": 64}), others[0])
        await s.wait(lambda: _is(s.condition("Upgraded", others[0]), DONE))
        assert await _versions(s, others[1]) == {(1, 2)}
    mended = {"engine_image": "engine:3", "gateway_image": "gateway:3"}
    async with s.operator("three", **mended, **QUICK):
        await s.wait(lambda: _is_told_to_end(s, f"{first}-decode-{WORKERS}"))
        s.kubelet.asleep.clear()
        for name in NAMES:
            await s.wait(lambda name=name: _is(_versions(s, name), {(3, 2)}))
        await s.wait(lambda: _nobody_in_turn(s))


async def _break_new_pods(s, name):
    """Tell of a new worker what a kubelet tells of an image that cannot be."""
    found = [pod for pod in (await s.pods("decode")).values() if _of(pod) == name]
    new = [pod["metadata"]["name"] for pod in found if _version(pod)[0] == 2]
    waiting = {"reason": "InvalidImageName", "message": "couldn't parse it"}
    entry = {"name": "worker", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    for pod in new:
        status = {"containerStatuses": [{**entry, "state": {"waiting": waiting}}]}
        await s.cluster.patch_status(Ref("Pod", s.name, pod), status)
    return new


async def _is_told_to_end(s, name):
    pod = (await s.pods("decode")).get(name)
    return pod is None or _is_leaving(pod) or _version(pod)[0] == 3


async def _event(s, name):
    path = f"/apis/events.k8s.io/v1/namespaces/{s.name}/events"
    _, answer = await asyncio.to_thread(s.api.call, "GET", path)
    told = {(e["regarding"]["name"], e["type"], e["reason"]) for e in answer["items"]}
    return (name, "Warning", conditions.UPGRADE_FAILED) in told
