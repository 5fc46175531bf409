"""Streams of a real model go on identically when their worker is killed, drained or replaced: each kind of fault once.

Other tests have paced workers, whose tokens need no KV cache. Here every token depends on the tokens before.
"""

from collections.abc import Iterator

import kube
import pytest
from kube import Namespace
from load import Load, answers
from service import Service

# Float32, so that a text does not depend on who computes it in which batch.
MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {name: exact}
spec:
  model: {source: {builtin: smollm2-135m-instruct}}
  engine: {dtype: Float32, kvCacheMemory: 256Mi}
  prefill: {resources: {requests: {cpu: 100m, memory: 800Mi}}}
  decode: {resources: {requests: {cpu: 100m, memory: 800Mi}}}
  routing: {localPrefillBelowTokens: 0, whenPrefillBusy: Wait}
  scaling: {mode: External, prefill: {min: 1, max: 1}, decode: {min: 1, max: 2}}
  drain: {deadline: 1m}
"""


@pytest.fixture(scope="module")
def service(network: None, namespace: Namespace) -> Service:
    namespace.apply(MANIFEST)
    service = Service(namespace, "exact")
    service.until_settled()
    service.scale("decode", 2)
    service.until_pods("decode", 2)
    service.until_gateways_ready()
    return service


@pytest.fixture(scope="module")
def undisturbed(service: Service) -> dict[str, str]:
    """The texts of streams to which nothing happens."""
    return answers(service.client, service.name)


@pytest.fixture
def load(service: Service, undisturbed: dict[str, str]) -> Iterator[Load]:
    """Two streams. None may fail, or say anything else than undisturbed."""
    with Load(service.client, service.name, undisturbed, streams=2) as load:
        yield load
        load.until_more(2)
    assert load.failures == []


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_streams_survive_a_killed_worker(service: Service, load: Load, role: str) -> None:
    service.lose(role, grace=0)
    service.until_pods(role, {"decode": 2, "prefill": 1}[role])


def test_streams_survive_a_drained_worker(service: Service, load: Load) -> None:
    service.scale("decode", 1)
    service.until_pods("decode", 1)
    service.until_settled()


def test_streams_survive_a_rollout(service: Service, load: Load) -> None:
    before = service.workers()
    service.patch({"engine": {"chunkTokens": 128}})
    kube.until(lambda: not before & service.workers(ready=True), "every worker is a new one")
    service.until_settled()
