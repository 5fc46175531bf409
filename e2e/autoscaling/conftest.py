"""Services of paced workers on GPUs that are numbers alone, and the figures that tests of them have found."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import gpus
import pytest
from kube import Namespace, Object
from samples import Samples, violations
from service import Service

GPUS = 8  # of each node
# A prompt of 100 tokens takes 0.84 s. 16 sequences decode within 90 % of the objective, on one worker.
PROFILE = {
    "source": "made up: slow enough that a few requests a second need several workers",
    "step": {"perStep": 0.02, "perRow": 0.01, "perContext": 0, "perToken": 0.008, "perPair": 0},
    "kvTokens": 100_000,
    "startSeconds": 1,
}
_TEXT = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: profiles}}
data: {{"slow.json": '{profile}'}}
---
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {{name: {name}}}
spec:
  model: {{source: {{builtin: smollm2-135m-instruct}}, maxLength: 8192}}
  engine: {{runner: Paced, profile: /profiles/slow.json, chunkTokens: 64}}
  decode: &pool
    resources: {{requests: {{cpu: 10m, memory: 150Mi, nvidia.com/gpu: 1}}}}
    template:
      spec:
        tolerations: [{{key: nvidia.com/gpu, operator: Exists}}]
        containers: [{{name: worker, volumeMounts: [{{name: profiles, mountPath: /profiles}}]}}]
        volumes: [{{name: profiles, configMap: {{name: profiles}}}}]
  prefill: *pool
  gateway: {{replicas: {gateways}}}
  slo: {{ttft: 2s, tpot: 200ms}}
  scaling: {scaling}
  drain: {{deadline: 1m}}
"""
SCALING = {
    "mode": "Managed",
    "prefill": {"min": 1, "max": 4},
    "decode": {"min": 1, "max": 4},
    "gpuBudget": 6,
    "maxPrefillPerDecode": 3,
    "maxDecodePerPrefill": 3,
    "scaleDownStabilization": "15s",
}
Serve = Callable[..., Service]


@pytest.fixture(scope="module")
def nodes(cluster: None) -> Iterator[list[str]]:
    """Names of those that take workers, each with GPUs."""
    with ExitStack() as stack:
        yield [stack.enter_context(gpus.on(node, GPUS)) for node in gpus.nodes()]


@pytest.fixture(scope="module")
def serve(namespace: Namespace, nodes: list[str]) -> Iterator[Serve]:
    """Applies a service, with other `scaling` fields than `SCALING` has. `profile` replaces parts of `PROFILE`, for all
    services of the file."""
    made: list[Service] = []

    def apply(
        name: str, gateways: int = 1, profile: Mapping[str, Any] = MappingProxyType({}), **scaling: Any
    ) -> Service:
        paced, text = json.dumps({**PROFILE, **profile}), json.dumps({**SCALING, **scaling})
        namespace.apply(_TEXT.format(name=name, profile=paced, gateways=gateways, scaling=text))
        made.append(Service(namespace, name))
        return made[-1]

    yield apply
    for service in made:
        namespace.kubectl("delete", "inferenceservice", service.name, "--timeout=120s")


@pytest.fixture
def watch() -> Callable[[Service], Any]:
    """Samples of a service, as a context. No promise of its manifest may be broken in any of them."""
    return _watched


@contextmanager
def _watched(service: Service) -> Iterator[Samples]:
    spec: Object = service.object()["spec"]
    with Samples(service) as samples:
        samples.until(lambda sample: True, "there is a sample")
        yield samples
    assert not list(violations(samples.taken, spec))


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, float | str], None]:
    """Notes what a test has measured: it is told at the end, and in JUnit's file."""

    def note(what: str, found: float | str) -> None:
        record_property(what, f"{found:.1f}" if isinstance(found, float) else found)

    return note


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The figures, also of tests that pass."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for what, found in report.user_properties if report.when == "call" else ():
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {what}: {found}")
