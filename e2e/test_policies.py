"""With NetworkPolicies enforced a service works, and strangers reach what is for clients and probes alone."""

from collections.abc import Iterator

import helm
import kube
import probe
import pytest
from kube import Namespace
from service import Service

HTTP, HEALTH, CONTROL, OPERATOR_HTTP = 8080, 8081, 8082, 8083
TRANSFER = range(8100, 8200)
ALL = [HTTP, HEALTH, CONTROL, OPERATOR_HTTP, *TRANSFER]
MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {name: closed}
spec:
  model: {source: {builtin: smollm2-135m-instruct}}
  engine: {kvCacheMemory: 256Mi}
  prefill: {resources: {requests: {cpu: 200m, memory: 800Mi}}}
  decode: {resources: {requests: {cpu: 200m, memory: 800Mi}}}
  routing: {localPrefillBelowTokens: 0, whenPrefillBusy: Wait}
  drain: {deadline: 5s}
"""


@pytest.fixture(scope="module", autouse=True)
def enforced(release: Namespace) -> None:
    """Skips all where it does not matter what a policy says."""
    if not probe.policies_are_enforced():
        pytest.skip("this cluster does not enforce NetworkPolicies")


@pytest.fixture(scope="module")
def service(namespace: Namespace) -> Service:
    namespace.apply(MANIFEST)
    service = Service(namespace, "closed")
    service.until_ready()
    return service


@pytest.fixture(scope="module", params=["another namespace", "the same namespace"])
def strangers(request: pytest.FixtureRequest, namespace: Namespace) -> Iterator[Namespace]:
    """Where a pod runs that is no part of the service."""
    if request.param == "the same namespace":
        probe.start(namespace)
        yield namespace
        namespace.kubectl("delete", "pod", probe.STRANGER)
    else:
        with kube.namespace("e2e-strangers") as other:
            probe.start(other)
            yield other


def test_the_service_works(service: Service) -> None:
    """Its gateway finds the workers, which hand over to each other and tell the operator how they are."""
    answer, route = service.ask("Name the capital of France.")
    assert "Paris" in answer
    assert route["transport"].startswith("ucx:")
    assert service.condition("KVTransportReady")["reason"] == "Connected"


def test_peers_reach_control_and_transfer(service: Service) -> None:
    """What strangers must not reach is there."""
    (prefill,), (decode,) = service.pods("prefill"), service.pods("decode")
    found = probe.reached(service.namespace, decode, probe.address(service.namespace, prefill), ALL)
    assert found >= {HEALTH, CONTROL}
    assert found & {*TRANSFER}


def test_strangers_reach_a_worker_s_health_alone(service: Service, strangers: Namespace) -> None:
    for role in ("prefill", "decode"):
        (worker,) = service.pods(role)
        found = probe.reached(strangers, probe.STRANGER, probe.address(service.namespace, worker), ALL)
        assert found == {HEALTH}, role


def test_strangers_are_clients_of_a_gateway(service: Service, strangers: Namespace) -> None:
    (gateway,) = service.pods("gateway")
    found = probe.reached(strangers, probe.STRANGER, probe.address(service.namespace, gateway), ALL)
    assert found == {HTTP, HEALTH}


def test_strangers_reach_the_operator_s_metrics_alone(release: Namespace, strangers: Namespace) -> None:
    (operator,) = helm.operators(release)
    found = probe.reached(strangers, probe.STRANGER, probe.address(release, operator), ALL)
    assert found == {OPERATOR_HTTP}


def test_nobody_is_the_operator_by_its_label(service: Service, strangers: Namespace) -> None:
    """The operator's pods are let in from its own namespace."""
    strangers.kubectl("label", "pod", probe.STRANGER, "app.kubernetes.io/name=legato-operator")
    (worker,) = service.pods("decode")
    found = probe.reached(strangers, probe.STRANGER, probe.address(service.namespace, worker), ALL)
    assert found == {HEALTH}
