"""Another version of the operator on a real API server: services take their turns, and nothing is lost meanwhile."""

from legato_operator.api import conditions
from legato_operator.cluster import is_leaving

NAMES = ("one", "three", "two")
WORKERS = 2
MARK = "serving.legato.dev/draining-since"
DONE = ("True", conditions.UP_TO_DATE)


def _flags(version):
    """Settings of an operator of this version."""
    return {"engine_image": f"engine:{version}", "gateway_image": f"gateway:{version}", "upgrade_pause": 0.3}


def _of(pod):
    return pod["metadata"]["labels"]["serving.legato.dev/service"]


def _version(pod):
    """The tag of its image, and a field that the operator adds."""
    made = pod["spec"]["containers"][0]
    return int(made["image"].rpartition(":")[2]), made["readinessProbe"]["periodSeconds"]


def _service(build, **changes):
    return build(scaling={"prefill": {"max": 0}, "decode": {"min": WORKERS}}, **changes)


async def _all_kept(s):
    """True if revisions that ran well are stored: two templates and a manifest of each."""
    return len((await s.cluster.list("ControllerRevision", s.name, {"serving.legato.dev/service": ""})).items) >= 9


async def _versions(s, name):
    return {_version(pod) for pod in (await s.cluster.list("Pod", s.name)).items if _of(pod) == name}


async def _in_turn(s):
    stored = [await s.cluster.get(s.ref(name)) for name in NAMES]
    return {item["metadata"]["name"] for item in stored if item["status"].get("upgradeTurn")}


async def test_a_version_that_cannot_start_goes_no_further_than_one_service(s, build):
    """Reported in the condition and by an Event. An edit of another service takes its turn all the same. A version that
    can start goes on where the other one stopped.
    """
    async with s.operator("one", **_flags(1)):
        await s.serve(_service(build), *NAMES)
        await s.wait(lambda: _all_kept(s))
    s.kubelet.asleep |= {f"{name}-decode-{WORKERS}" for name in NAMES}
    async with s.operator("two", **_flags(2)):
        await s.wait(lambda: _in_turn(s))
        (first,) = await _in_turn(s)
        await s.wait(lambda: _crash_new_pods(s, first))
        await s.wait(lambda: s.condition("Upgraded", first), ("False", conditions.UPGRADE_FAILED))
        assert await s.ready(first)
        await s.wait(lambda: s.has_warning(conditions.UPGRADE_FAILED, first))
        others = [name for name in NAMES if name != first]
        for name in others:
            assert await s.condition("Upgraded", name) == ("False", conditions.WAITING_FOR_TURN)
            assert await _versions(s, name) == {(1, 2)}
        s.kubelet.asleep = {f"{first}-decode-{WORKERS}"}
        await s.make(_service(build, engine={"chunkTokens": 64}), others[0])
        await s.wait(lambda: s.condition("Upgraded", others[0]), DONE)
        assert await _versions(s, others[1]) == {(1, 2)}
    async with s.operator("three", **_flags(3)):
        await s.wait(lambda: _is_ending(s, f"{first}-decode-{WORKERS}"))
        s.kubelet.asleep.clear()
        for name in NAMES:
            await s.wait(lambda name=name: _versions(s, name), {(3, 2)})
        await s.wait(lambda: _in_turn(s), set())


async def _crash_new_pods(s, name):
    new = [pod for pod in (await s.pods("decode")).values() if _of(pod) == name and _version(pod)[0] == 2]
    for pod in new:
        await s.crash(pod["metadata"]["name"])
    return new


async def _is_ending(s, name):
    """True if a pod is on its way out, gone, or replaced by one of the third version."""
    pod = (await s.pods("decode")).get(name)
    return pod is None or is_leaving(pod) or MARK in pod["metadata"].get("annotations", {}) or _version(pod)[0] == 3
