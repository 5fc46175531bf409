"""With `scaling.mode: External` others scale the pools, by means that Kubernetes has; the operator never does."""

from pathlib import Path

import pytest
import release
import yaml

from legato_operator.cluster import uid_of
from legato_operator.observing import ownership

DOCS = Path(__file__).parents[3] / "docs"
HPA = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
EXTERNAL = {"mode": "External", "prefill": {"max": 0}, "decode": {"min": 1, "max": 5}}

pytestmark = release.NEEDED


async def test_horizontal_pod_autoscaler_scales_a_pool_and_is_never_overwritten(s, build):
    """Outside of its own bounds an HPA needs no metrics. A new operator and an edit leave its replicas alone, too."""
    async with s.operator():
        await s.serve(build(scaling=EXTERNAL, drain={"deadline": "1s"}))
        await _autoscale(s, 3, 4)
        await s.wait(lambda: _has(s, 3))
        assert await s.scalers() == ["kube-controller-manager"]
    async with s.operator("another"):
        await s.make(build(scaling=EXTERNAL, drain={"deadline": "1s"}, gateway={"defaultDeadline": "1m"}))
        await s.wait(s.is_current)
        assert ((await _pool(s))["spec"]["replicas"], await s.scalers()) == (3, ["kube-controller-manager"])
        await _autoscale(s, 1, 2)
        await s.wait(lambda: _has(s, 2))
        assert await s.scalers() == ["kube-controller-manager"]
        await s.wait(lambda: _is_counted(s, 2))


@pytest.mark.parametrize("cascade", ["Background", "Foreground", "Orphan"])
async def test_workers_of_a_deleted_pool_serve_on_and_leave_as_in_a_scale_down(s, operator, build, cascade):
    """The operator makes the pool again, with its smallest size, and gives it the workers."""
    await s.serve(build(scaling=EXTERNAL))
    await s.scale(3)
    await s.wait(lambda: _has(s, 3))
    workers, before = await s.uids("decode"), uid_of(await _pool(s))
    s.kubelet.busy.update(dict.fromkeys(workers, 1))
    await s.call("DELETE", f"{s.path('workerpools')}/demo-decode", {"propagationPolicy": cascade})
    await s.wait(lambda: len(s.kubelet.drained), 2)
    await s.wait(lambda: _controllers(s), {uid_of(await _pool(s))})
    assert before not in await _controllers(s)
    assert await s.uids("decode") == workers
    s.kubelet.busy.clear()
    await s.wait(lambda: _has_workers(s, 1))
    assert (await s.uids("decode")).items() < workers.items()


def _documented(page):
    (text,) = [block for block in (DOCS / page).read_text().split("```") if "kind: HorizontalPodAutoscaler" in block]
    return yaml.safe_load(text.removeprefix("yaml\n"))


async def _autoscale(s, least, most):
    """The HPA of the docs, with these bounds and for this service, and quick to scale down."""
    item = _documented("autoscaling-external.md")
    item["metadata"] = {"name": "demo"}
    item["spec"]["scaleTargetRef"]["name"] = "demo-decode"
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    item["spec"] |= {"minReplicas": least, "maxReplicas": most, "behavior": behavior}
    path = f"{HPA.format(s.name)}/demo?fieldManager=user&force=true"
    status, answer = await s.call("PATCH", path, item, "application/apply-patch+yaml")
    assert status < 300, answer


async def _is_counted(s, workers):
    """True if the HPA can scale the pool, and sees that many workers."""
    _, found = await s.call("GET", f"{HPA.format(s.name)}/demo")
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    return conditions["AbleToScale"] == "True" and found["status"]["currentReplicas"] == workers


async def _pool(s):
    return await s.cluster.get(s.ref("demo-decode", "WorkerPool"))


async def _has(s, workers):
    """True if there are that many workers, as desired, and nothing is in progress."""
    pool = await _pool(s)
    status = pool.get("status", {})
    sizes = (len(await s.pods("decode")), pool["spec"]["replicas"], status.get("replicas"), status.get("readyReplicas"))
    return set(sizes) == {workers} and await s.condition("Progressing") == ("False", "UpToDate")


async def _has_workers(s, count):
    return len(await s.pods("decode")) == count


async def _controllers(s):
    """UIDs of the objects that control decode workers; None where nothing does."""
    return {ownership.controller(pod).get("uid") for pod in (await s.pods("decode")).values()}
