"""Kubernetes' own scheduler among nodes with and without GPUs: who runs where, and what is reported when nobody can."""

import control_plane
import pytest

GPU = "nvidia.com/gpu"
ROLES = ("prefill", "decode", "gateway")
PRODUCT = "nvidia.com/gpu.product"
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}
ON_GPUS = {
    "resources": {"requests": {"cpu": "1", GPU: 1}},
    "template": {
        "spec": {
            "nodeSelector": {PRODUCT: "NVIDIA-H200"},
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        }
    },
}
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def nodes(controlled):
    """The API server with a scheduler, a node with three GPUs that are for those who tolerate it, and one without."""
    folder = control_plane.needed("kube-scheduler")
    _make_node(controlled, "gpus", {GPU: "3"}, {PRODUCT: "NVIDIA-H200"}, [TAINT])
    _make_node(controlled, "plain", {}, {}, [])
    try:
        with control_plane.scheduler(folder, controlled):
            yield controlled
    finally:
        for name in ("gpus", "plain"):
            controlled.call("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
async def s(nodes, s):
    """A namespace whose pods start where the scheduler puts them, and its operator."""
    s.kubelet.schedules = False
    async with s.operator():
        yield s


async def test_gpu_pools_run_where_gpus_are_and_one_too_many_is_reported(s, build):
    scaling = {"mode": "External", "prefill": {"max": 1}, "decode": {"max": 4}}
    await s.serve(build(prefill=ON_GPUS, decode=ON_GPUS, scaling=scaling))
    nodes = [pod["spec"]["nodeName"] for role in ROLES for pod in (await s.pods(role)).values()]
    assert nodes == ["gpus", "gpus", "plain"]
    await s.scale(3)
    await s.wait(lambda: s.condition("Progressing"), ("True", "CapacityUnavailable"))
    assert await s.ready(), "what serves goes on"
    message = await s.message()
    assert "demo-decode-2: 0/2 nodes are available" in message
    assert f"Insufficient {GPU}" in message
    await s.wait(lambda: s.has_warning("CapacityUnavailable"))
    pods = set(await s.pods("decode"))
    await s.scale(4)
    await s.wait(lambda: _desires(s, 4))
    assert set(await s.pods("decode")) == pods, "no second pod waits beside the first"
    await s.scale(2)
    await s.wait(lambda: s.condition("Progressing"), ("False", "UpToDate"))
    assert not s.kubelet.drained, "the one that waited went, and without a drain"


def _make_node(api, name, more, labels, taints):
    """Makes a node that is ready, as its kubelet would report."""

    def call(method, path, body):
        status, made = api.call(method, path, body)
        assert status < 300, made
        return made

    metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
    made = call("POST", "/api/v1/nodes", {"metadata": metadata})
    made["spec"]["taints"] = taints  # in place of the one that keeps pods off a node that has not reported yet
    made = call("PUT", f"/api/v1/nodes/{name}", made)
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    made["status"] = {"capacity": ROOM | more, "allocatable": ROOM | more, "conditions": ready}
    call("PUT", f"/api/v1/nodes/{name}/status", made)


async def _desires(s, workers):
    """True if the operator has seen that this number is desired."""
    return (await s.cluster.get(s.ref()))["status"]["pools"]["decode"]["desired"] == workers
