"""With `scaling.mode: External` others scale the pools, by means that Kubernetes has; the operator never does."""

import asyncio
from pathlib import Path

import release
import yaml

from legato_operator.cluster import Ref

DOCS = Path(__file__).parents[3] / "docs"
HPA = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
EXTERNAL = {"mode": "External", "prefill": {"max": 0}, "decode": {"min": 1, "max": 5}}

pytestmark = release.NEEDED


async def test_burst_while_two_workers_drain_recalls_both(s, operator, build):
    """They are in their pool's selector again, as the same pods."""
    await s.make(build(scaling=EXTERNAL))
    await s.wait(s.ready)
    await _kubectl(s, "scale", "lwp/demo-decode", "--replicas=4")
    await s.wait(lambda: _has(s, 4))
    before = {name: pod["metadata"]["uid"] for name, pod in (await s.pods("decode")).items()}
    s.kubelet.busy.update(dict.fromkeys(before, 1))
    await _kubectl(s, "scale", "lwp/demo-decode", "--replicas=2")
    await s.wait(lambda: len(s.kubelet.drained) == 2)
    await s.wait(lambda: _is_staying(s, 2))
    await _kubectl(s, "scale", "lwp/demo-decode", "--replicas=4")
    await s.wait(lambda: _has(s, 4))
    assert not s.kubelet.drained
    pods = await s.pods("decode")
    assert {name: pod["metadata"]["uid"] for name, pod in pods.items()} == before
    for pod in pods.values():
        assert pod["metadata"]["labels"]["serving.legato.dev/serving"] == "true"
        assert "serving.legato.dev/draining-since" not in pod["metadata"].get("annotations", {})


async def _is_staying(s, workers):
    return (await _pool(s)).get("status", {}).get("replicas") == workers


async def test_horizontal_pod_autoscaler_scales_a_pool_and_is_never_overwritten(s, build):
    """Outside of its own bounds an HPA needs no metrics. A new operator and an edit leave its replicas alone, too."""
    async with s.operator():
        await s.make(build(scaling=EXTERNAL, drain={"deadline": "1s"}))
        await s.wait(s.ready)
        await _autoscale(s, 3, 4)
        await s.wait(lambda: _has(s, 3))
        assert await _owners(s) == ["kube-controller-manager"]
    async with s.operator("another"):
        await s.make(build(scaling=EXTERNAL, drain={"deadline": "1s"}, gateway={"defaultDeadline": "1m"}))
        await s.wait(s.is_current)
        assert (await _replicas(s), await _owners(s)) == (3, ["kube-controller-manager"])
        await _autoscale(s, 1, 2)
        await s.wait(lambda: _has(s, 2))
        assert await _owners(s) == ["kube-controller-manager"]
        await s.wait(lambda: _is_counted(s, 2))


async def test_the_autoscaler_of_the_docs_is_one_that_kubernetes_takes(s):
    item = _documented("autoscaling-external.md")
    item["metadata"]["namespace"] = s.name
    path = f"{HPA.format(s.name)}/{item['metadata']['name']}?fieldManager=user&fieldValidation=Strict"
    status, stored = await s.call("PATCH", path, item, "application/apply-patch+yaml")
    assert status == 201, stored
    assert stored["spec"]["metrics"] == item["spec"]["metrics"]


def _documented(page):
    """The HPA of a page."""
    (text,) = [block for block in (DOCS / page).read_text().split("```") if "kind: HorizontalPodAutoscaler" in block]
    return yaml.safe_load(text.removeprefix("yaml\n"))


async def _autoscale(s, least, most):
    """The HPA of the docs, with these bounds and for this service, and quick to scale down."""
    item = _documented("kubernetes.md")
    item["metadata"]["name"] = "demo"
    item["spec"]["scaleTargetRef"]["name"] = "demo-decode"
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    item["spec"] |= {"minReplicas": least, "maxReplicas": most, "behavior": behavior}
    path = f"{HPA.format(s.name)}/demo?fieldManager=user&force=true"
    status, answer = await s.call("PATCH", path, item, "application/apply-patch+yaml")
    assert status < 300, answer


async def _is_counted(s, workers):
    """Whether the HPA can scale the pool, and sees that many workers."""
    _, found = await s.call("GET", f"{HPA.format(s.name)}/demo")
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    return conditions["AbleToScale"] == "True" and found["status"]["currentReplicas"] == workers


async def _kubectl(s, *arguments):
    with release.tools(s.api) as tools:
        await asyncio.to_thread(tools.kubectl, "--namespace", s.name, *arguments)


async def _pool(s):
    return await s.cluster.get(Ref("WorkerPool", s.name, "demo-decode"))


async def _replicas(s):
    return (await _pool(s))["spec"]["replicas"]


async def _owners(s):
    """Who wrote spec.replicas, of all that ever wrote to the pool."""
    entries = (await _pool(s))["metadata"]["managedFields"]
    return [entry["manager"] for entry in entries if "f:replicas" in entry["fieldsV1"].get("f:spec", {})]


async def _has(s, workers):
    """That many workers, as desired, and nothing in progress."""
    status = (await _pool(s)).get("status", {})
    counts = (len(await s.pods("decode")), await _replicas(s), status.get("replicas"), status.get("readyReplicas"))
    return set(counts) == {workers} and await s.condition("Progressing") == ("False", "UpToDate")
