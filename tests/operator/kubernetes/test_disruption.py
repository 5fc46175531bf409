"""What Kubernetes' own disruption controller makes of a pool's budget: a node can be drained, one worker at a time."""

from legato_operator.api import conditions
from legato_operator.cluster import Ref

EVICTED, REFUSED = 201, 429
UNIFIED = {"prefill": {"max": 0}, "mode": "External"}


async def test_budget_follows_what_the_pool_gets_and_not_what_somebody_asked_for(s, operator, build):
    """With a wish of 4 and a maximum of 2, no drain would end; with one of 1 and a minimum of 2, both could go."""
    await s.make(build(scaling={**UNIFIED, "decode": {"min": 2, "max": 2}}))
    for replicas in (4, 1):
        await _scale(s, replicas)
        await s.wait(lambda: s.condition("Progressing"), ("False", conditions.CAPPED))
        await s.wait(lambda: _has_workers(s, 2))
        await s.wait(lambda: _allows(s, 1))
    s.kubelet.asleep.add("demo-decode-1")  # nothing takes the evicted worker's place in time
    assert await _evict(s, "demo-decode-1") == EVICTED
    assert await _evict(s, "demo-decode-0") == REFUSED


async def test_budget_is_counted_again_when_a_rollout_has_ended(s, operator, build):
    """Its old worker is marked and leaves; nothing changes afterwards."""
    service = {"scaling": {**UNIFIED, "decode": {"min": 1, "max": 1}}}
    await s.make(build(**service))
    await s.wait(lambda: s.condition("Progressing"), ("False", conditions.UP_TO_DATE))
    await s.wait(lambda: _allows(s, 1))
    s.kubelet.busy["demo-decode-0"] = 1
    await s.make(build(**service, engine={"chunkTokens": 256}))
    await s.wait(lambda: "demo-decode-0" in s.kubelet.drained)
    await s.wait(lambda: _allows(s, 1))
    s.kubelet.busy.clear()
    await s.wait(lambda: s.condition("Progressing"), ("False", conditions.UP_TO_DATE))
    assert list(await s.pods("decode")) == ["demo-decode-1"]
    await s.wait(lambda: _allows(s, 1))


async def _scale(s, replicas):
    wish = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "WorkerPool",
        "metadata": {"name": "demo-decode", "namespace": s.name},
        "spec": {"replicas": replicas},
    }
    await s.wait(lambda: _has_size(s))
    await s.cluster.apply(wish, "user", force=True)


async def _has_size(s):
    """The operator gives the pool its first one a moment after it was made."""
    found = (await s.cluster.list("WorkerPool", s.name)).items
    return any(each["metadata"]["name"] == "demo-decode" and "replicas" in each["spec"] for each in found)


async def _has_workers(s, count):
    return len(await s.pods("decode")) == count


async def _allows(s, disruptions):
    """That many, counted after the last change of the budget."""
    found = await s.cluster.get(Ref("PodDisruptionBudget", s.name, "demo-decode"))
    status = found.get("status", {})
    current = status.get("observedGeneration") == found["metadata"]["generation"]
    return current and status["disruptionsAllowed"] == disruptions


async def _evict(s, name):
    """The API server's answer to what `kubectl drain` asks for."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": s.name}}
    path = f"/api/v1/namespaces/{s.name}/pods/{name}/eviction"
    return (await s.call("POST", path, eviction))[0]
