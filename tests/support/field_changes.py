"""A change of every field of the manifest, for tests of the effects."""

import copy
from collections.abc import Iterator
from typing import Any, get_origin

from pydantic import BaseModel

from legato_operator.api import field_errors, parsing, quantities, resources

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
    "model.source.huggingFace.file": "Q4_K_M/model.gguf",
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
    "engine.hostKVMemory": "1Gi",
    "engine.diskKV.path": "/other",
    "engine.diskKV.size": "2Gi",
    "engine.chunkTokens": 256,
    "engine.outputReservation": "Maximum",
    "engine.maxRunning": 128,
    "engine.speculation.method": "PromptLookup",
    "engine.speculation.tokens": 2,
    "engine.startTimeout": "1h",
    "engine.image": "registry.example/engine:1",
    "gateway.image": "registry.example/gateway:1",
    "engine.hangTimeout": "30s",
    "engine.dtype": "BFloat16",
    "engine.quantization": "FP8",
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
    "gateway.whenLate": "Refuse",
    "gateway.tenantTokensPerMinute": {"*": 60},
    "gateway.tenantMaxOutputTokens": {"*": 60},
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
    "routing.kvSharing": "Off",
    "routing.onWorkerFailure": "Fail",
    "routing.weights.prefixCache": 1.5,
    "routing.weights.kvCacheUtilization": 0,
    "routing.weights.stepTime": 0.5,
    "routing.weights.adapter": 0,
    "transfer.transport": "SharedMemory",
    "transfer.required": True,
    "transfer.onFailure": "Fail",
    "transfer.checksum": False,
    "transfer.nodeMemory": "On",
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
    "rollout.canary.weight": 20,
    "rollout.canary.interval": "1m",
    "rollout.canary.minRequests": 50,
    "rollout.canary.maxSlowdown": 50,
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
        "limits.maxOutputTokens": 100,
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
    f"{part}.{field}": value
    for part in ("model.source", "model.adapters.source", "engine.speculation.model")
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
CHANGES |= {
    "engine.speculation.model.builtin": "smollm2-135m-instruct",
    "engine.speculation.model.huggingFace.file": "draft.gguf",
}
DRAFT = "engine.speculation.model."
SOURCES = {"huggingFace": {"repo": "owner/name", "revision": "1" * 40}, "pvc": {"claim": "claim"}}


def leaves(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for field in model.model_fields.values():
        here = f"{path}{field.alias}"
        inner = field_errors.model_in(field.annotation)
        whole = get_origin(field.annotation) is list and not any(path.startswith(f"{here}.") for path in CHANGES)
        if inner is None or whole:
            yield here
        else:
            yield from leaves(inner, f"{here}.")


def merged(spec: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return spec | {
        key: merged(spec[key], value) if isinstance(value, dict) and isinstance(spec.get(key), dict) else value
        for key, value in more.items()
    }


def with_field(spec: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
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
        if parent == "source" or (parent == "model" and path.startswith(DRAFT)):
            kind = path.partition(f"{parent}.")[2].split(".")[0]
            part.clear()
            part |= copy.deepcopy({kind: SOURCES[kind]}) if kind in SOURCES else {}
    part[last] = value
    return merged(PACED, spec) if path == "engine.runner" else spec


def base_for(path: str) -> dict[str, Any]:
    if "dapter" in path and not path.startswith(("routing", "model.adapterVolumes")):
        return merged(BASE, {"model": {"adapters": [{"name": "sql", "source": {"path": "/adapters/sql"}}]}})
    if path == "tracing.samplingRatePerMillion":
        return BASE | {"tracing": {"endpoint": "https://collector"}}
    if path == "internalTLS.mode":
        return BASE | {"internalTLS": {"secret": "internal"}}
    if path.startswith("transfer.rdma."):
        return BASE | {"transfer": {"transport": "RDMA", "rdma": RDMA}}
    if path.startswith(DRAFT):
        return BASE | {"engine": {"speculation": {"method": "Draft", "model": {"path": "/models/draft.gguf"}}}}
    if path == "engine.speculation.tokens":
        return BASE | {"engine": {"speculation": {"method": "PromptLookup"}}}
    if path.startswith("engine.diskKV"):
        return BASE | {"engine": {"hostKVMemory": "1Gi", "diskKV": {"path": "/kv", "size": "1Gi"}}}
    if path == "engine.profile":
        return BASE | PACED
    if path.startswith(("gateway.httpRoute", "gateway.ingress")):
        return BASE | {"gateway": ROUTES}
    if not path.endswith(".replicas") or path.startswith("gateway"):
        return BASE
    return merged({key: value for key, value in BASE.items() if key != "scaling"}, FIXED)


def service_of(spec: dict[str, Any]) -> resources.InferenceService:
    header = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "demo"}}
    return parsing.read_service(header | {"spec": spec})
