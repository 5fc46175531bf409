"""From `helm install` and the example manifest to an answer, its KV handed over between two pods."""

import json
import time
from pathlib import Path

import helm
import kube
import pytest
from kube import Namespace, Object
from service import Service

EXAMPLE = Path(__file__).parents[1] / "examples" / "quickstart" / "inferenceservice.yaml"
ANOTHER = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {name: another}
spec:
  model: {source: {builtin: smollm2-135m-instruct}}
  engine: {kvCacheMemory: 256Mi}
  decode: {resources: {requests: {cpu: 200m, memory: 800Mi}}}
  scaling: {prefill: {max: 0}}
  drain: {deadline: 5s}
"""


@pytest.fixture(scope="module")
def service(namespace: Namespace) -> Service:
    began = time.monotonic()
    namespace.apply(EXAMPLE.read_text())
    service = Service(namespace, "smollm2")
    service.until_ready()
    print(f"ready {time.monotonic() - began:.1f} s after it was applied")
    return service


def test_the_openai_client_is_answered_through_the_service(service: Service) -> None:
    answer, route = service.ask("Name the capital of France.")
    assert "Paris" in answer
    assert route["prefill"] in service.pods("prefill")
    assert route["decode"] in service.pods("decode")
    assert route["transport"].startswith("ucx:")


def test_the_kv_cache_went_from_one_pod_to_another(service: Service) -> None:
    _, route = service.ask("What is the capital of Italy?")
    record = next(record for record in service.state()["requests"] if record["id"] == route["id"])
    (handoff,) = record["handoffs"]
    assert handoff["source"] in service.pods("prefill")
    assert handoff["target"] in service.pods("decode")
    assert handoff["blocks"] > 0


def test_kubectl_get_shows_it_ready(service: Service) -> None:
    heading, row = service.namespace.kubectl("get", "inferenceservices").splitlines()
    shown = dict(zip(heading.split(), row.split(), strict=False))
    assert shown["NAME"] == "smollm2"
    assert shown["READY"] == "True"
    assert (shown["MODEL"], shown["PREFILL"], shown["DECODE"]) == ("smollm2", "1", "1")


@pytest.mark.parametrize("field", ["", ".spec.decode", ".spec.transfer", ".spec.drain.deadline"])
def test_kubectl_explain_describes_every_field(service: Service, field: str) -> None:
    text = kube.run("kubectl", "explain", f"inferenceservice{field}")
    assert "<no description>" not in text
    assert "DESCRIPTION:" in text


def test_every_pod_runs_at_the_restricted_level(service: Service, release: Namespace) -> None:
    """The namespaces enforce it, the operator's too; it does not ask for what is looked at here."""
    ours = [pod for role in ("prefill", "decode", "gateway") for pod in service.found(role)]
    operators = release.list("pods", helm.OPERATOR)
    containers = [container for pod in (*ours, *operators) for container in pod["spec"]["containers"]]
    assert {c["name"] for c in containers} == {"worker", "gateway", "operator"}
    assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in containers)


def test_helm_test_asks_a_question(service: Service, release: Namespace) -> None:
    said = kube.run("helm", "test", "legato", "--namespace", release.name, "--timeout", "3m", "--logs")
    assert "Succeeded" in said
    assert "Paris" in said


@pytest.fixture
def another(namespace: Namespace) -> Service:
    """A second service of the namespace, without a prefill pool: it is there for a moment only."""
    namespace.apply(ANOTHER)
    another = Service(namespace, "another")
    another.until_ready()
    return another


def test_a_deleted_service_leaves_nothing_behind(service: Service, another: Service) -> None:
    assert {item["kind"] for item in _owned(another)} >= {"Pod", "Service", "Secret", "Deployment", "WorkerPool"}
    before = _names(service)
    another.namespace.kubectl("delete", "inferenceservice", another.name, "--timeout=120s")
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
