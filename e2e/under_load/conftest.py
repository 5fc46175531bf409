"""One service for all that is done to it here, with streams that must not notice."""

from collections.abc import Iterator

import kube
import pytest
from kube import Namespace
from load import Load, answers
from service import Service, network_is_the_clusters

# Float32, so that a text does not depend on who computes it in which batch.
MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {name: steady}
spec:
  model: {source: {builtin: smollm2-135m-instruct}}
  engine: {dtype: Float32, kvCacheMemory: 256Mi}
  prefill: {resources: {requests: {cpu: 200m, memory: 800Mi}}}
  decode: {resources: {requests: {cpu: 200m, memory: 800Mi}}}
  gateway: {replicas: 2}
  routing: {localPrefillBelowTokens: 0, whenPrefillBusy: Wait}
  scaling: {mode: External, prefill: {min: 1, max: 2}, decode: {min: 1, max: 3}}
  drain: {deadline: 1m}
"""


@pytest.fixture(scope="session")
def service(release: Namespace) -> Iterator[Service]:
    if not network_is_the_clusters():
        pytest.skip("a port-forward ends with its gateway; this needs the cluster's own network")
    with kube.namespace("e2e-under-load") as namespace:
        namespace.apply(MANIFEST)
        service = Service(namespace, "steady")
        service.until_ready()
        yield service


@pytest.fixture(scope="session")
def undisturbed(service: Service) -> dict[str, str]:
    """What streams say while nothing happens."""
    return answers(service.client, service.name)


@pytest.fixture
def settled(service: Service) -> Service:
    """Two workers of each role, and nothing on its way."""
    service.patch({"rollout": None})
    for role in ("prefill", "decode"):
        service.scale(role, 2)
    for role in ("prefill", "decode", "gateway"):
        service.until_pods(role, 2)
    service.until_settled()
    return service


@pytest.fixture
def load(settled: Service, undisturbed: dict[str, str]) -> Iterator[Load]:
    """Streams that use all of them. None may fail or say anything else than undisturbed."""
    with Load(settled.client, settled.name, undisturbed) as load:
        yield load
    assert load.failures == []
