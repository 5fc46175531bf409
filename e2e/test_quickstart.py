"""From `helm install` and the example manifest to an answer of the real model, its KV handed over between two pods."""

import json
import time
from pathlib import Path

import helm
import kube
import paced
import pytest
from helm import Release
from kube import Namespace, Object
from service import Service

EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart" / "inferenceservice.yaml"


@pytest.fixture(scope="module")
def service(release: Release, namespace: Namespace) -> Service:
    began = time.monotonic()
    namespace.apply(EXAMPLE.read_text())
    service = Service(namespace, "smollm2")
    service.until_ready()
    print(f"ready {time.monotonic() - began:.1f} s after it was applied")
    return service


def test_the_openai_client_is_answered_and_the_kv_cache_goes_from_one_pod_to_another(service: Service) -> None:
    answer, route = service.ask("Name the capital of France.")
    assert "Paris" in answer
    assert route["prefill"] in service.pods("prefill")
    assert route["decode"] in service.pods("decode")
    assert route["transport"].startswith("ucx:")
    record = next(record for record in service.state()["requests"] if record["id"] == route["id"])
    (handoff,) = record["handoffs"]
    assert (handoff["source"], handoff["target"]) == (route["prefill"], route["decode"])
    assert handoff["blocks"] > 0


def test_kubectl_get_shows_it_ready(service: Service) -> None:
    expected = {"NAME": "smollm2", "READY": "True", "MODEL": "smollm2", "PREFILL": "1", "DECODE": "1"}

    def is_shown() -> bool:
        heading, row = service.namespace.kubectl("get", "inferenceservices").splitlines()
        return dict(zip(heading.split(), row.split(), strict=False)).items() >= expected.items()

    kube.until(is_shown, f"kubectl shows {expected}")


def test_every_pod_runs_at_the_restricted_level(service: Service, release: Release) -> None:
    """The namespaces enforce it, also the operator's; a read-only root file system is more than that."""
    ours = [pod for role in ("prefill", "decode", "gateway") for pod in service.found(role)]
    operators = release.namespace.list("pods", helm.OPERATOR)
    containers = [container for pod in (*ours, *operators) for container in pod["spec"]["containers"]]
    assert {c["name"] for c in containers} == {"worker", "gateway", "operator"}
    assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in containers)


def test_helm_test_asks_a_question(release: Release) -> None:
    said = kube.run("helm", "test", release.name, "--namespace", release.namespace.name, "--timeout", "4m", "--logs")
    assert "Succeeded" in said
    assert "Paris" in said


def test_a_deleted_service_leaves_nothing_behind(service: Service) -> None:
    """Nor does it take anything of another service of the namespace."""
    service.namespace.apply(paced.manifest("another"))
    another = Service(service.namespace, "another")
    another.until_ready()
    assert {item["kind"] for item in _owned(another)} >= {"Pod", "Service", "Secret", "Deployment", "WorkerPool"}
    before = _names(service)
    service.namespace.kubectl("delete", "inferenceservice", another.name, "--timeout=120s")
    kube.until(lambda: not _owned(another), "all that the service owned is gone")
    assert _names(service) == before


def _owned(service: Service) -> list[Object]:
    kinds = "pods,services,secrets,deployments,workerpools,networkpolicies,poddisruptionbudgets,roles,rolebindings"
    selector = f"serving.legato.dev/service={service.name}"
    text = service.namespace.kubectl("get", kinds, "--output", "json", "--selector", selector)
    found: list[Object] = json.loads(text)["items"]
    return found


def _names(service: Service) -> set[tuple[str, str]]:
    return {(item["kind"], item["metadata"]["uid"]) for item in _owned(service)}
