"""Kubernetes' own scheduler among nodes with and without GPUs: who runs where, and what is told when nobody can."""

import contextlib

import control_plane
import pytest

GPU = "nvidia.com/gpu"
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


async def test_gpu_pools_run_where_gpus_are_and_one_too_many_is_told(nodes, space, build):
    async with _scheduled(space) as s, s.operator():
        scaling = {"mode": "External", "prefill": {"max": 1}, "decode": {"max": 4}}
        await s.make(build(prefill=ON_GPUS, decode=ON_GPUS, scaling=scaling))
        await s.wait(s.ready)
        assert await _places(s) == {"demo-prefill-0": "gpus", "demo-decode-0": "gpus", "gateway": "plain"}
        await _scale(s, 3)
        await s.wait(lambda: s.condition("Progressing"), ("True", "CapacityUnavailable"))
        assert await s.ready(), "what serves goes on"
        message = await s.message()
        assert "demo-decode-2: 0/2 nodes are available" in message
        assert f"Insufficient {GPU}" in message
        await s.wait(lambda: s.has_warning("CapacityUnavailable"))
        pods = set(await s.pods("decode"))
        await _scale(s, 4)
        await s.wait(lambda: _desires(s, 4))
        assert set(await s.pods("decode")) == pods, "no second pod waits beside the first"
        await _scale(s, 2)
        await s.wait(lambda: s.condition("Progressing"), ("False", "UpToDate"))
        assert not s.kubelet.drained, "the one that waited went, and without a drain"


async def test_resource_that_no_node_has_is_told_by_its_name(nodes, space, build):
    async with _scheduled(space) as s, s.operator():
        await s.make(build(decode={"resources": {"requests": {"nvidia.com/gqu": 1}}}))
        await s.wait(lambda: s.condition("Ready"), ("False", "Unschedulable"))
        assert await s.condition("DecodeReady") == ("False", "Unschedulable")
        assert "Insufficient nvidia.com/gqu" in await s.message("Ready")
        await s.wait(lambda: s.has_warning("Unschedulable"))
        await s.make(build())
        await s.wait(s.ready)


async def test_changed_manifest_without_its_claim_touches_nothing_and_goes_on_when_that_is_made(nodes, space, build):
    """The same for the Secret that a template names."""
    async with _scheduled(space) as s, s.operator():
        quick = {"rollout": {"maxSurge": 0, "maxUnavailable": 1}, "drain": {"deadline": "1s"}}
        await s.make(build(**quick))
        await s.wait(s.ready)
        before = await _uids(s)
        variable = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "one"}}}
        template = {"spec": {"containers": [{"name": "worker", "env": [variable]}]}}
        mounted = {"source": {"pvc": {"claim": "weights", "path": "model"}}}
        await s.make(build(model=mounted, prefill={"template": template}, **quick))
        await s.wait(lambda: s.condition("Progressing"), ("False", "NotFound"))
        assert await s.message() == (
            "spec.model.source.pvc.claim: PersistentVolumeClaim weights not found; "
            "spec.prefill.template.spec.containers[worker].env[KEY]: Secret keys not found"
        )
        assert await s.ready()
        await s.wait(lambda: s.has_warning("NotFound"))
        assert (await s.call("POST", "secrets", {"metadata": {"name": "keys"}, "stringData": {"two": "x"}}))[0] == 201
        await s.wait(lambda: _tells(s, "Secret keys has no key one"))
        await s.make(build(model=mounted, **quick))
        assert await _uids(s) == before
        claim = {"accessModes": ["ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}}
        status, _ = await s.call("POST", "persistentvolumeclaims", {"metadata": {"name": "weights"}, "spec": claim})
        assert status == 201
        # Nobody makes a volume for it here: the first new pod waits, and says for what.
        await s.wait(lambda: s.condition("Progressing"), ("True", "Unschedulable"))
        assert "unbound" in await s.message()


@contextlib.asynccontextmanager
async def _scheduled(space):
    """A namespace whose pods start where the scheduler wants them."""
    async with space() as s:
        s.kubelet.schedules = False
        yield s


def _make_node(api, name, more, labels, taints):
    """A node that is ready, as its kubelet would tell."""
    node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}}
    status, made = api.call("POST", "/api/v1/nodes", node)
    assert status < 300, made
    made["spec"]["taints"] = taints  # in place of the one that keeps pods off a node that has not told anything yet
    status, made = api.call("PUT", f"/api/v1/nodes/{name}", made)
    assert status < 300, made
    ready = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    room = {"capacity": ROOM | more, "allocatable": ROOM | more, "conditions": ready}
    status, made = api.call("PUT", f"/api/v1/nodes/{name}/status", made | {"status": room})
    assert status < 300, made


async def _places(s):
    """The node of each worker, and of the gateway."""
    (gateway,) = (await s.pods("gateway")).values()
    workers = await s.pods("prefill") | await s.pods("decode")
    nodes = {name: pod["spec"]["nodeName"] for name, pod in workers.items()}
    return nodes | {"gateway": gateway["spec"]["nodeName"]}


async def _uids(s):
    workers = await s.pods("prefill") | await s.pods("decode")
    return {name: pod["metadata"]["uid"] for name, pod in workers.items()}


async def _scale(s, replicas):
    path = f"/apis/serving.legato.dev/v1alpha1/namespaces/{s.name}/workerpools/demo-decode/scale"
    body = {"spec": {"replicas": replicas}}
    status, answer = await s.call("PATCH", path, body, merge=True)
    assert status == 200, answer


async def _desires(s, workers):
    """Whether the operator has seen that so many are desired."""
    return (await s.cluster.get(s.ref()))["status"]["pools"]["decode"]["desired"] == workers


async def _tells(s, text):
    return text in await s.message()
