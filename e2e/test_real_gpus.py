"""Workers that compute on real GPUs, in pods as users have them: `scripts/e2e-gpu` brings a cluster with some."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import kube
import pytest
import yaml
from helm import Release
from kube import Namespace, Object
from service import Service

EXAMPLE = Path(__file__).parents[1] / "examples" / "two-gpus" / "inferenceservice.yaml"
GPU = "nvidia.com/gpu"
START = 900.0  # seconds; an image of some GB is unpacked, kernels are compiled
RUNTIME = "nvidia"  # name of the RuntimeClass, where a cluster does not run all containers by NVIDIA's runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(2 * START),
    pytest.mark.skipif(
        not os.environ.get("LEGATO_E2E_CUDA"),
        reason="needs real GPUs and an engine image made for them: scripts/e2e-gpu, or set LEGATO_E2E_CUDA",
    ),
]


@pytest.fixture(scope="module")
def most(release: Release) -> int:
    """The number of GPUs of the node with the most of them; skips where there are none."""
    nodes = json.loads(kube.run("kubectl", "get", "nodes", "--output=json"))["items"]
    found = max(int(node["status"]["allocatable"].get(GPU, 0)) for node in nodes)
    if not found:
        pytest.skip(f"no node offers {GPU}: no GPU, or no device plugin")
    return found


@pytest.fixture
def manifest() -> Object:
    """The example, by its own name, with NVIDIA's runtime where the cluster has a class for it."""
    made: Object = yaml.safe_load(EXAMPLE.read_text())
    del made["spec"]["model"]["servedName"]
    if kube.run("kubectl", "get", "runtimeclass", RUNTIME, "--ignore-not-found"):
        for pool in ("prefill", "decode"):
            made["spec"][pool]["template"]["spec"]["runtimeClassName"] = RUNTIME
    return made


@pytest.fixture
def service(namespace: Namespace, manifest: Object) -> Iterator[Service]:
    made = Service(namespace, manifest["metadata"]["name"])
    yield made
    namespace.kubectl("delete", "inferenceservice", made.name, "--ignore-not-found", "--timeout=120s")


def test_one_worker_computes_on_a_gpu(most: int, namespace: Namespace, manifest: Object, service: Service) -> None:
    """As an unprivileged user with a read-only root file system, by kernels that were compiled there."""
    spec = manifest["spec"]
    del spec["prefill"], spec["decode"]["replicas"]
    spec["scaling"] = {"prefill": {"max": 0}, "decode": {"max": 1}, "gpuBudget": 1}
    _serve(namespace, manifest, service)
    answer, _ = service.ask("Name the capital of France.")
    assert "Paris" in answer
    (pod,) = service.pods("decode")
    found = namespace.kubectl("exec", pod, "--", "legato", "doctor")
    assert "gpu 0" in found
    assert "compiles here" in found
    assert "/cache/triton: writable" in found
    assert namespace.kubectl("exec", pod, "--", "id", "-u").strip() == "65532"
    assert _fallbacks(namespace, pod) == ["0.0"]


def test_prefill_and_decode_have_a_gpu_each_and_hand_over(
    most: int, namespace: Namespace, manifest: Object, service: Service
) -> None:
    if most < 2:
        pytest.skip(f"needs a node with two GPUs; the largest has {most}")
    _serve(namespace, manifest, service)
    pods = [pod for role in ("prefill", "decode") for pod in service.found(role)]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 1
    answer, route = service.ask("Name the capital of France, and tell why it became the capital. " * 8)
    assert "Paris" in answer
    assert route["prefill"] != route["decode"]
    assert route["transport"].startswith("ucx:")
    assert [_fallbacks(namespace, pod["metadata"]["name"]) for pod in pods] == [["0.0"], ["0.0"]]


def _serve(namespace: Namespace, manifest: Object, service: Service) -> None:
    namespace.apply(yaml.safe_dump(manifest))
    kube.until(lambda: service.condition("Ready").get("status") == "True", "the service is ready", patience=START)


def _fallbacks(namespace: Namespace, pod: str) -> list[str]:
    """Returns the values of the metric of kernels' fallbacks; each worker has one."""
    code = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8081/metrics').read().decode())"
    lines = namespace.kubectl("exec", pod, "--", "python", "-c", code).splitlines()
    return [line.split()[1] for line in lines if line.startswith("legato_worker_kernel_fallback ")]
