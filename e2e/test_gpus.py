"""Workers that ask for GPUs go where those are, and say so when there are too few. GPUs are numbers alone here."""

from collections.abc import Iterator

import gpus
import helm
import kube
import pytest
from gpus import GPU
from kube import Namespace
from service import Service

LABEL = "e2e.legato.dev/gpus"
COUNT = 2
MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {name: gpus}
spec:
  model: {source: {builtin: smollm2-135m-instruct}}
  engine: {kvCacheMemory: 256Mi}
  decode: &pool
    resources: {requests: {cpu: 100m, memory: 800Mi, nvidia.com/gpu: 1}}
    template:
      spec:
        nodeSelector: {e2e.legato.dev/gpus: "true"}
        tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  prefill: *pool
  scaling: {mode: External, prefill: {max: 1}, decode: {max: 4}}
  drain: {deadline: 5s}
"""


@pytest.fixture(scope="module")
def numbers(release: Namespace) -> Iterator[None]:
    """An operator to which these GPUs are a resource like others: nobody could compute on them."""
    _set_gpu_resources(release, "example.com/gpu")
    yield
    _set_gpu_resources(release, GPU)


@pytest.fixture(scope="module")
def node(release: Namespace) -> Iterator[str]:
    """The one node that has GPUs for this file; its own are left out of it meanwhile."""
    node = max(gpus.nodes(), key=lambda node: len(node["spec"].get("taints", ())))
    with gpus.on(node, COUNT) as name:
        kube.run("kubectl", "label", "node", name, f"{LABEL}=true")
        yield name
        kube.run("kubectl", "label", "node", name, f"{LABEL}-")


@pytest.fixture(scope="module")
def service(numbers: None, namespace: Namespace, node: str) -> Iterator[Service]:
    namespace.apply(MANIFEST)
    service = Service(namespace, "gpus")
    service.until_settled()
    yield service
    namespace.kubectl("delete", "inferenceservice", service.name, "--timeout=120s")


def test_workers_run_where_gpus_are(service: Service, node: str) -> None:
    places = [pod["spec"]["nodeName"] for role in ("prefill", "decode") for pod in service.found(role)]
    assert places == [node, node]
    answer, _ = service.ask("Name the capital of France.")
    assert "Paris" in answer


def test_one_worker_too_many_is_told_while_the_others_serve(service: Service) -> None:
    service.scale("decode", COUNT)
    told = kube.until(lambda: _waiting(service), "the condition names the worker without a place")
    assert f"Insufficient {GPU}" in told
    notes = kube.until(lambda: _warnings(service), "an Event says so too")
    assert any(f"Insufficient {GPU}" in note for note in notes)
    answer, _ = service.ask("Name the capital of France.")
    assert "Paris" in answer
    service.scale("decode", 1)
    service.until_settled()


def _set_gpu_resources(system: Namespace, name: str) -> None:
    helm.upgrade(system, f"gpuResources={{{name}}}")


def _waiting(service: Service) -> str:
    found = service.condition("Progressing")
    return str(found["message"]) if found.get("reason") == "CapacityUnavailable" else ""


def _warnings(service: Service) -> list[str]:
    return [each["note"] for each in service.events() if each["type"] == "Warning"]
