"""Every field of the manifest changes the plan or is refused.

What the plan starts is parsed by the processes' own settings, so that no flag is one that they do not know.
"""

import copy
import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import pytest
from planned import actions, observed, pod
from pydantic import BaseModel

from legato_cli import main
from legato_engine import settings as worker_settings
from legato_gateway import settings as gateway_settings
from legato_operator.api import crd, field_errors, parsing, quantities, resources
from legato_operator.api.resources import Spec
from legato_operator.local import command
from legato_operator.manifests import common, placement, pool, revision, worker
from legato_operator.observing.observed import Observed, Pod, WorkerState
from legato_operator.planning import checks
from legato_operator.planning.actions import Apply
from legato_operator.planning.plan import plan

PLACEMENT = placement.local(("legato",))
CLUSTER = placement.kubernetes("engine", "gateway")
DOCS = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text()
SCHEMA = crd.inference_service()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
PARSER = main.parser()

GPU = {quantities.GPU: 1}
BASE: dict[str, Any] = {
    "model": {"source": {"builtin": "smollm2-135m-instruct"}},
    "prefill": {"resources": {"requests": {"cpu": 1} | GPU}},
    "decode": {"resources": {"requests": {"cpu": 1} | GPU}},
    "transfer": {"transport": "TCP"},
    "scaling": {"prefill": {"min": 2, "max": 3}, "decode": {"min": 2, "max": 3}, "gpuBudget": 8},
}
PACED = {"engine": {"runner": "Paced", "profile": "one"}}
ROUTES = {"httpRoute": {"parentRefs": [{"name": "public"}]}, "ingress": {"hosts": ["a.example.com"]}}
RDMA = {"resource": "rdma/hca_shared_devices_a", "hugePages": {"memory": "1Gi"}}
FIXED = {"prefill": {"replicas": 2}, "decode": {"replicas": 2}, "scaling": {"mode": "Fixed"}}

CHANGES: dict[str, Any] = {
    "model.source.builtin": None,
    "model.source.huggingFace.nodeCache": "/var/lib/legato",
    "model.source.huggingFace.resources.requests": {"cpu": 1},
    "model.source.huggingFace.resources.limits": {"cpu": 1},
    "model.servedName": "other",
    "model.maxLength": 2048,
    "model.generationConfig": "None",
    "model.adapters.name": "law",
    "model.adapters.maxRank": 8,
    "model.adapterVolumes": [{"path": "/others"}],
    "model.adaptersInMemory": 2,
    "model.maxAdapterRank": 16,
    "engine.blockSize": 32,
    "engine.kvCacheMemory": "1Gi",
    "engine.chunkTokens": 256,
    "engine.outputReservation": "Maximum",
    "engine.maxRunning": 128,
    "engine.startTimeout": "1h",
    "engine.image": "registry.example/engine:1",
    "gateway.image": "registry.example/gateway:1",
    "engine.hangTimeout": "30s",
    "engine.dtype": "Float32",
    "engine.kvCacheDtype": "BFloat16",
    "engine.numerics": "Invariant",
    "engine.onKernelFailure": "Torch",
    "engine.runner": "Paced",
    "engine.profile": "other",
    "gateway.replicas": 2,
    "gateway.resources.requests": {"cpu": 1},
    "gateway.resources.limits": {"cpu": 1},
    "gateway.template": {"spec": {"nodeSelector": {"a": "b"}}},
    "gateway.defaultDeadline": "1m",
    "gateway.maxDuration": "1h",
    "gateway.tenantTokensPerMinute": {"*": 60},
    "gateway.apiKeys.path": "/keys.json",
    "gateway.apiKeys.secret": "keys",
    "gateway.tls.path": "/tls",
    "gateway.tls.secret": "certificate",
    "gateway.trustedProxies": ["10.0.0.0/8"],
    "gateway.httpRoute.parentRefs": [{"name": "other"}],
    "gateway.httpRoute.hostnames": ["b.example.com"],
    "gateway.httpRoute.annotations": {"a": "b"},
    "gateway.ingress.hosts": ["b.example.com"],
    "gateway.ingress.className": "nginx",
    "gateway.ingress.tlsSecret": "certificate",
    "gateway.ingress.annotations": {"a": "b"},
    "gateway.allowedOrigins": ["https://chat.example.com"],
    "gateway.accessLog": "JSON",
    "gateway.toolCallParser": "Mistral",
    "gateway.reasoningParser": "Mistral",
    "gateway.responseStore.retention": "10m",
    "gateway.responseStore.memory": "8Mi",
    "routing.localPrefillBelowTokens": 0,
    "routing.whenPrefillUnavailable": "Wait",
    "routing.whenPrefillBusy": "Wait",
    "routing.weights.prefixCache": 1.5,
    "routing.weights.kvCacheUtilization": 0,
    "routing.weights.stepTime": 0.5,
    "routing.weights.adapter": 0,
    "transfer.transport": "SharedMemory",
    "transfer.required": True,
    "transfer.onFailure": "Fail",
    "transfer.checksum": False,
    "transfer.rdma.resource": "rdma/ib",
    "transfer.rdma.count": 2,
    "transfer.rdma.memoryLock": "NodeLimit",
    "transfer.rdma.hugePages.pageSize": "1Gi",
    "transfer.rdma.hugePages.memory": "2Gi",
    "transfer.rdma.sharedMemory": "1Gi",
    "internalTLS.secret": "internal",
    "internalTLS.mode": "Strict",
    "tracing.endpoint": "http://collector:4318",
    "tracing.samplingRatePerMillion": 1000,
    "slo.ttft": "2s",
    "slo.tpot": "200ms",
    "scaling.mode": "External",
    "scaling.scaleDownStabilization": "5m",
    "scaling.idleAfter": "5m",
    "scaling.gpuBudget": 4,
    "scaling.maxPrefillPerDecode": 1,
    "scaling.maxDecodePerPrefill": 1,
    "drain.deadline": "1m",
    "rollout.maxSurge": "100%",
    "rollout.maxUnavailable": 1,
    "rollout.progressDeadline": "1m",
    "rollout.autoRollback": True,
} | {
    f"{pool}.{field}": value
    for pool in ("prefill", "decode")
    for field, value in {
        "resources.requests": {"cpu": 2} | GPU,
        "resources.limits": {"cpu": 2},
        "parallelism.tensor": 2,
        "template": {"spec": {"nodeSelector": {"a": "b"}}},
        "replicas": 3,
    }.items()
}
CHANGES |= {
    f"gateway.{part}": value
    for part, value in {
        "limits.maxQueuedRequests": 1,
        "limits.maxQueuedTokens": 1,
        "limits.maxRetries": 0,
        "limits.maxBodySize": "1Mi",
        "limits.maxPendingBodiesSize": "1Gi",
        "limits.maxConnections": 100,
        "limits.idleTimeout": "1m",
        "limits.headTimeout": "1500ms",
        "limits.minBodyRate": 0,
        "limits.indexBlocks": 0,
        "streams.start": "FirstToken",
        "streams.keepAlive": "1500ms",
        "streams.slowClient": "Disconnect",
        "streams.bufferTokens": 16,
    }.items()
}
CHANGES |= {
    f"scaling.{pool}.{bound}": value for pool in ("prefill", "decode") for bound, value in (("min", 3), ("max", 2))
}
CHANGES |= {
    f"{part}.source.{field}": value
    for part in ("model", "model.adapters")
    for field, value in {
        "path": "/models/other",
        "huggingFace.repo": "owner/other",
        "huggingFace.revision": "0" * 40,
        "huggingFace.tokenSecret": "secret",
        "pvc.claim": "other",
        "pvc.path": "folder",
        "image": "image",
    }.items()
}
SOURCES = {"huggingFace": {"repo": "owner/name", "revision": "1" * 40}, "pvc": {"claim": "claim"}}


def _leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        here = f"{path}{field.alias}"
        inner = field_errors.model_in(field.annotation)
        whole = get_origin(field.annotation) is list and not any(path.startswith(f"{here}.") for path in CHANGES)
        if inner is None or whole:
            yield here
        else:
            yield from _leaves(inner, f"{here}.")


def _merged(spec: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return spec | {
        key: _merged(spec[key], value) if isinstance(value, dict) and isinstance(spec.get(key), dict) else value
        for key, value in more.items()
    }


def _with(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`spec` with one field changed; of the sources there is always exactly one."""
    spec = copy.deepcopy(spec)
    if value is None:
        return spec | {"model": {"source": {"path": "/models/one.gguf"}}}
    part: Any = spec
    *parents, last = path.split(".")
    for parent in parents:
        part = part.setdefault(parent, {})
        if isinstance(part, list):
            (part,) = part
        if parent == "source":
            kind = path.split(".source.")[1].split(".")[0]
            part.clear()
            part |= copy.deepcopy({kind: SOURCES[kind]}) if kind in SOURCES else {}
    part[last] = value
    return _merged(PACED, spec) if path == "engine.runner" else spec


def _base(path: str) -> dict[str, Any]:
    if "dapter" in path and not path.startswith(("routing", "model.adapterVolumes")):
        return _merged(BASE, {"model": {"adapters": [{"name": "sql", "source": {"path": "/adapters/sql"}}]}})
    if path == "tracing.samplingRatePerMillion":
        return BASE | {"tracing": {"endpoint": "https://collector"}}
    if path == "internalTLS.mode":
        return BASE | {"internalTLS": {"secret": "internal"}}
    if path.startswith("transfer.rdma."):
        return BASE | {"transfer": {"transport": "RDMA", "rdma": RDMA}}
    if path == "engine.profile":
        return BASE | PACED
    if path.startswith(("gateway.httpRoute", "gateway.ingress")):
        return BASE | {"gateway": ROUTES}
    if not path.endswith(".replicas") or path.startswith("gateway"):
        return BASE
    return _merged({key: value for key, value in BASE.items() if key != "scaling"}, FIXED)


def _service(spec: dict[str, Any]) -> resources.InferenceService:
    header = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "demo"}}
    return parsing.read_service(header | {"spec": spec})


@functools.cache
def _changed(path: str) -> resources.InferenceService:
    """The service with that field changed."""
    return _service(_with(_base(path), path, CHANGES[path]))


@functools.cache
def _plans_before(base: str, where: placement.PodPlacement) -> list[Any]:
    """Plans of a service without the change; most changes have the same one."""
    return list(_plans(_service(json.loads(base)), where))


def _reaches(path: str, where: placement.PodPlacement = PLACEMENT) -> bool:
    """True if the change makes another plan; most do so of the first."""
    both = zip(_plans_before(json.dumps(_base(path)), where), _plans(_changed(path), where), strict=True)
    return any(before != after for before, after in both)


def _plans(service: resources.InferenceService, where: placement.PodPlacement = PLACEMENT) -> Iterator[Any]:
    """For a cluster with nothing but pools in it, for one that was scaled up, for one that waits for its rollout, and
    for one whose rollout failed. Its workers have found no transport.
    """
    old = [
        pod(f"demo-{role}-{i}", role, "old", state=WorkerState(0, False, ""))
        for role, count in (("prefill", 2), ("decode", 2), ("gateway", 1))
        for i in range(count)
    ]
    passes = [observed(service, _pools(service, *sizes)) for sizes in ((), (3, 3), (3, 2), (2, 3))]
    rolling = observed(service, _pools(service, 2, 2), old)
    return (plan(each, where) for each in (*passes, rolling, _failed(rolling)))


def _failed(rolling: Observed) -> Observed:
    """With a new worker that is not ready yet, after the operator saw another fail."""
    service = rolling.service
    good = {"metadata": {"labels": {}}, "spec": {}}
    kept = common.signed(revision.controller_revision(service, "decode", good, 1))
    kept["metadata"] |= {"uid": "uid"}
    desired = common.revision_of(worker.template(service, "decode", PLACEMENT))
    late = Pod("demo-decode-9", "uid-9", "decode", desired, "9", False, False, waiting=100.0)
    status = {"pools": {"decode": {"failedRevision": desired, "failure": "it crashed"}}}
    return dataclasses.replace(rolling, pods=(*rolling.pods, late), objects=(*rolling.objects, kept), status=status)


def _pools(service: resources.InferenceService, *desired: int) -> tuple[Any, ...]:
    """The pools' objects, with `spec.replicas` or without."""
    made = [pool.worker_pool(service, role) for role in ("prefill", "decode")]
    extras = [{"replicas": count} for count in desired] or [{}, {}]
    return tuple(
        {**item, "metadata": {**item["metadata"], "uid": "uid", "generation": 1}, "spec": {**item["spec"], **extra}}
        for item, extra in zip(made, extras, strict=True)
    )


def test_every_field_is_looked_at():
    assert set(_leaves(Spec)) == set(CHANGES)


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_field_reaches_a_process_or_is_refused(path):
    service = _changed(path)
    refused = checks.unavailable(service.spec)
    if refused:
        assert any(f"spec.{path}".startswith(_field(problem)) for problem, _ in refused)
        assert all(not made.phases for made in _plans(service))
    elif (
        any(f"spec.{path}".startswith(field) for field, _ in checks.without_effect(service.spec, has_gpus=True))
        or path == "engine.onKernelFailure"
    ):
        assert not _reaches(path)
        assert _reaches(path, CLUSTER)
    elif path in ("scaling.mode", "scaling.scaleDownStabilization", "scaling.idleAfter"):
        assert not _reaches(path)  # for whoever sets the replicas
    else:
        assert _reaches(path)


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_explain_and_docs_say_what_is_not_available_yet(path):
    """`kubectl explain` shows the description: a field that is only refused there would look as if it did something."""
    spec = _changed(path).spec
    refused = [
        {field for field, _ in checks.unavailable(spec, contained) if f"spec.{path}".startswith(_field(field))}
        for contained in (False, True)
    ]
    (row,) = [line for line in DOCS.splitlines() if line.startswith("|") and f"`{path}`" in line.split("|")[1]]
    for text in (_description(path), row):
        assert ("not available yet" in text) is all(refused)


def _field(problem: str) -> str:
    """Its path without an entry's place in its list."""
    return problem.replace(".0.", ".")


def _description(path: str) -> str:
    schema = SCHEMA
    for name in ("spec", *path.split(".")):
        schema = schema.get("items", schema)["properties"][name]
    return str(schema["description"])


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_processes_accept_what_they_are_started_with(path):
    service = _changed(path)
    pods = [action.item for action in actions(next(_plans(service)), Apply) if action.item["kind"] == "Pod"]
    for made in pods:
        container = made["spec"]["containers"][0]
        flags = PARSER.parse_args(command.expand(container["command"][1:], {"LEGATO_LISTEN_FD": "3"}))
        environ = {"LEGATO_TOKEN": "token"}
        read = (worker_settings if container["name"] == "worker" else gateway_settings).read(flags, environ)
        assert read.drain_deadline == service.spec.drain.deadline
        assert made["spec"]["terminationGracePeriodSeconds"] > read.drain_deadline
    assert pods or checks.unavailable(service.spec)
