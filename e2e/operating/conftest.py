"""Services of paced workers, which compute nothing: what is done to them takes no longer than it has to."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import kube
import pytest
from kube import Namespace, Object
from load import Load, answers
from service import Service, network_is_the_clusters

# A stream of 48 tokens takes two seconds, whatever else the machine does.
PROFILE = {
    "source": "made up: slow enough that streams last while something is done to their workers",
    "step": {"perStep": 0.04, "perRow": 0, "perContext": 0, "perToken": 0.0001, "perPair": 0},
    "kvTokens": 100_000,
    "startSeconds": 1,
}
_PROFILES = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: profiles}}
data: {{"slow.json": '{profile}'}}
"""
_TEXT = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {{name: {name}}}
spec:
  model: {{source: {{builtin: smollm2-135m-instruct}}, maxLength: 8192}}
  engine: {{runner: Paced, profile: /profiles/slow.json}}
  decode: &pool
    resources: {{requests: {{cpu: 20m, memory: 150Mi}}}}
    template:
      spec:
        containers: [{{name: worker, volumeMounts: [{{name: profiles, mountPath: /profiles}}]}}]
        volumes: [{{name: profiles, configMap: {{name: profiles}}}}]
  prefill: *pool
  gateway: {gateway}
  tracing: {tracing}
  routing: {{localPrefillBelowTokens: 0}}
  scaling: {{mode: External, prefill: {{min: 1, max: 2}}, decode: {{min: {decode}, max: 3}}}}
  drain: {{deadline: 30s}}
"""
Serve = Callable[..., Service]


@pytest.fixture(scope="module")
def serve(namespace: Namespace) -> Iterator[Serve]:
    """Applies a service of one prefill worker. `gateway` and `tracing` are fields of its manifest."""
    if not network_is_the_clusters():
        pytest.skip("a port-forward ends with its gateway; this needs the cluster's own network")
    made: list[Service] = []
    namespace.apply(_PROFILES.format(profile=json.dumps(PROFILE)))

    def apply(
        name: str, gateways: int = 1, decode: int = 1, gateway: Object | None = None, tracing: Object | None = None
    ) -> Service:
        fields = json.dumps({"replicas": gateways, **(gateway or {})}), json.dumps(tracing or {})
        namespace.apply(_TEXT.format(name=name, gateway=fields[0], tracing=fields[1], decode=decode))
        made.append(Service(namespace, name))
        return made[-1]

    yield apply
    for service in made:
        namespace.kubectl("delete", "inferenceservice", service.name, "--timeout=120s", "--ignore-not-found")


@pytest.fixture
def under_load() -> Callable[..., Any]:
    """Streams to a settled service that must say what they say while nothing happens, as a context."""
    return _under_load


def _under_load(service: Service, streams: int) -> Load:
    service.until_settled()
    kube.until(lambda: service.condition("GatewayReady").get("status") == "True", "gateways have greeted workers")
    return Load(service.client, service.name, answers(service.client, service.name), streams)


@pytest.fixture
def load(operated: Service, under_load: Callable[..., Any]) -> Iterator[Load]:
    """Eight streams to the service of the module, `operated`: none fails."""
    with under_load(operated, streams=8) as load:
        yield load
    assert load.failures == []
