"""What happens to a cluster every day happens under streams: none fails, and all say what they would have said."""

from collections.abc import Iterator

import kube
import pytest
from kube import Namespace
from load import Load
from service import Service, network_is_the_clusters

pytestmark = pytest.mark.skipif(
    not network_is_the_clusters(), reason="a port-forward ends with its gateway; this needs the cluster's own network"
)

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
  routing: {localPrefillBelowTokens: 0}
  scaling: {mode: External, prefill: {min: 1, max: 2}, decode: {min: 1, max: 3}}
  drain: {deadline: 1m}
"""


@pytest.fixture(scope="module")
def service(namespace: Namespace) -> Service:
    namespace.apply(MANIFEST)
    service = Service(namespace, "steady")
    service.until_ready()
    return service


@pytest.fixture
def load(service: Service) -> Iterator[Load]:
    """Two workers of each role, and streams that use all of them."""
    for role in ("prefill", "decode"):
        service.scale(role, 2)
        service.until_pods(role, 2)
    service.until_settled()
    with Load(service) as load:
        yield load
    assert load.failures == []


def test_a_pool_is_scaled_down(service: Service, load: Load) -> None:
    service.scale("decode", 1)
    service.until_pods("decode", 1)
    load.until_more(8)


@pytest.mark.parametrize("role", ["prefill", "decode", "gateway"])
def test_a_pod_is_deleted(service: Service, load: Load, role: str) -> None:
    victim, *_ = service.pods(role)
    service.namespace.kubectl("delete", "pod", victim, "--wait=false")
    kube.until(
        lambda: service.namespace.get("pod", victim).get("metadata", {}).get("deletionTimestamp") is None, "gone"
    )
    service.until_settled()
    load.until_more(8)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_pod_is_killed(service: Service, load: Load, role: str) -> None:
    victim, *_ = service.pods(role)
    service.namespace.kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    load.until_more(8)


def test_the_operator_is_restarted_while_a_pool_is_scaled_down(
    service: Service, load: Load, release: Namespace
) -> None:
    service.scale("decode", 1)
    release.kubectl("delete", "pod", "--selector", "app.kubernetes.io/name=legato-operator", "--wait=false")
    service.until_pods("decode", 1)
    load.until_more(8)


def test_an_engine_setting_is_rolled_out(service: Service, load: Load) -> None:
    before = {*service.pods("prefill"), *service.pods("decode")}
    patch = '{"spec": {"engine": {"chunkTokens": 256}}}'
    service.namespace.kubectl("patch", "inferenceservice", service.name, "--type=merge", "--patch", patch)
    kube.until(
        lambda: not before & {*service.pods("prefill"), *service.pods("decode")},
        "every worker is a new one",
        patience=600,
    )
    service.until_settled()
    load.until_more(8)


def test_a_node_is_drained(service: Service, load: Load) -> None:
    node = service.namespace.get("pod", service.pods("decode")[0])["spec"]["nodeName"]
    try:
        kube.run(
            "kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s", patience=330
        )
        load.until_more(8)
    finally:
        kube.run("kubectl", "uncordon", node)
