"""Specs that a schema refuses: what is given over a minimal manifest, the field to blame, and words of the message.

Rules over several fields are cases of `tests/operator/api/test_rules.py`. `RESERVED` are templates of pods.
"""

from typing import Any

HUB = {"repo": "a/b", "revision": "0" * 40}
BESIDE: dict[str, Any] = {  # other fields that a part must have
    "model": {"source": {"builtin": "smollm2-135m-instruct"}},
    "model.source.huggingFace": HUB,
    "model.source.pvc": {"claim": "a"},
    "model.adapters.0": {"name": "a"},
    "model.adapters.0.source.huggingFace": HUB,
    "transfer.rdma": {"resource": "rdma/ib"},
    "engine.speculation": {"method": "PromptLookup"},
    "engine.speculation.model.huggingFace": HUB,
    "engine.speculation.model.pvc": {"claim": "a"},
}


def _with(path: str, value: Any, part: str = "") -> Any:
    """A part of a spec in which the field at this path has this value."""
    if not path:
        return value
    name, _, rest = path.partition(".")
    inner = _with(rest, value, f"{part}.{name}".strip("."))
    return [inner] if name == "0" else {**BESIDE.get(part, {}), name: inner}


FIELDS = [
    ("decode.replica", 2, "did you mean replicas?"),
    ("engine.blocksize", 16, "did you mean blockSize?"),
    ("engine.block_size", 16, "did you mean blockSize?"),
    ("prefil", {}, "did you mean prefill?"),
    ("scaling.prefill.maximum", 1, "did you mean max?"),
    ("decode.resources.request", {}, "did you mean requests?"),
    *(("decode.parallelism.tensor", wrong, f"not a valid degree: {wrong} (1, 2, 4, 8)") for wrong in (0, 3, 16, -1)),
    ("decode.parallelism.tensor", True, "must be a whole number, not true"),
    ("gateway.zzz", 1, "known are accessLog, allowedOrigins, apiKeys, defaultDeadline"),
    ("engine", "fast", "must be a mapping, not 'fast'"),
    ("engine", None, "must be a mapping, not nothing"),
    ("engine.chunkTokens", "512", "not a valid number of tokens: 512 (16 to 1048576"),
    ("engine.chunkTokens", True, "not a valid number of tokens: "),
    ("engine.chunkTokens", "auto", ", or Auto)"),
    *(("engine.chunkTokens", wrong, f"not a valid number of tokens: {wrong}") for wrong in (1.5, 15, 1048577)),
    ("engine.blockSize", 24, "must be 'Auto', 8, 16, 32, 64 or 128, not 24"),
    ("engine.kvCacheMemory", "lots", "not a valid size: lots (write 512Mi"),
    ("engine.kvCacheMemory", "auto", "1Mi to 1Pi, or Auto)"),
    *(("engine.kvCacheMemory", wrong, "not a valid size") for wrong in ("500m", "0", "1e3")),
    *(("engine.kvCacheMemory", wrong, "1Mi to 1Pi") for wrong in ("0.0Gi", "1023Ki", 512, "1.1Pi", "2000Ti")),
    *(("engine.hostKVMemory", wrong, "1Mi to 1Pi") for wrong in ("0", "512", "Auto", "2Pi")),
    ("engine.diskKV.path", "kv", "does not match ^/"),
    ("engine.diskKV.size", "0", "1Mi to 1Pi"),
    ("engine.dtype", "float32", "'Auto', 'BFloat16', 'Float16' or 'Float32'"),
    ("engine.kvCacheDtype", "Float16", "'Auto', 'BFloat16', 'FP8' or 'Float32'"),
    ("engine.quantization", "fp8", "'None', 'FP8' or 'Int8'"),
    ("engine.speculation.method", "Eagle3", "'PromptLookup' or 'Draft'"),
    *(("engine.speculation.tokens", wrong, "1" if wrong < 1 else "at most 7") for wrong in (0, 8)),
    ("engine.runner", "paced", "'Model' or 'Paced'"),
    ("engine.hangTimeout", "soon", "not a valid duration: soon"),
    *(("drain.deadline", wrong, f"not a valid duration: {wrong} (write 90s") for wrong in (120, "90")),
    ("drain.deadline", "2 minutes", "not a valid duration"),
    *(("drain.deadline", wrong, "1ms to 168h") for wrong in ("168h1ms", "0s", "0.00001ms")),
    *(
        (f"gateway.{field}", "300h", "1ms to 168h")
        for field in ("defaultDeadline", "maxDuration", "limits.headTimeout")
    ),
    ("gateway.limits.idleTimeout", 60, "not a valid duration"),
    ("gateway.limits.maxBodySize", "8MB", "write 512Mi"),
    *((f"gateway.limits.{field}", 0, "at least 1") for field in ("maxConnections", "maxOutputTokens")),
    ("gateway.limits.maxRetries", 1001, "at most 1000"),
    ("gateway.limits.maxTokens", 1, "did you mean maxQueuedTokens?"),
    ("gateway.streams.slowClient", "pause", "'Pause' or 'Disconnect'"),
    ("gateway.streams.start", "Never", "'Admission' or 'FirstToken'"),
    ("gateway.streams.bufferTokens", 0, "at least 1"),
    *(
        ("engine.maxRunning", wrong, "not a valid number of sequences: ")
        for wrong in (0, 5000, True, 1.5, "64", "auto")
    ),
    ("engine.startTimeout", "0s", "1ms to 168h"),
    ("rollout.progressDeadline", "200h", "1ms to 168h"),
    ("scaling.idleAfter", "0s", "1ms to 168h"),
    ("tracing.endpoint", "collector:4317", "does not match"),
    ("tracing.samplingRatePerMillion", 0.1, "must be a whole number"),
    ("gateway.trustedProxies.0", "10.0.0.0/33", "not a valid network"),
    *(("gateway.trustedProxies.0", wrong, "such as 10.0.0.0/8") for wrong in ("10.0.0.256", "fd00::/129")),
    *(("gateway.ingress.hosts.0", wrong, "does not match") for wrong in ("A.example", "a.example:80", "a.*.example")),
    *(("gateway.allowedOrigins.0", wrong, "does not match") for wrong in ("chat.example.com", "https://a/")),
    ("gateway.tls.secret", "TLS", "does not match"),
    ("gateway.apiKeys.secret", "Keys", "does not match"),
    ("gateway.accessLog", "Yes", "'Text', 'JSON' or 'Off'"),
    ("gateway.responseStore.memory", "Auto", "write 512Mi"),
    ("gateway.responseStore.memory", 1000, "1Mi to"),
    ("gateway.responseStore.retention", "1", "write"),
    ("gateway.toolCallParser", "JSON", "'Auto', 'Hermes', 'Llama3Json'"),
    ("gateway.reasoningParser", "XML", "'Auto', 'Think', 'Mistral'"),
    ("gateway.replicas", 101, "at most 100"),
    ("model.generationConfig", "vllm", "'Model' or 'None'"),
    ("model.servedName", "-x", "does not match"),
    *(("model.maxLength", wrong, "(16 to 16777216, or Auto)") for wrong in (0, 15, 16_777_217, "auto", "4096")),
    ("model.maxAdapterRank", 0, "1"),
    ("model.adapters.0.source.huggingFace.revision", "v1", "does not match"),
    ("model.source.builtin", "gpt-5", "smollm2-135m-instruct"),
    ("model.source.path", "-x", "does not match"),
    ("model.source.path", "", "must have at least 1 character, not 0"),
    ("model.source.huggingFace.revision", "main", "does not match"),
    ("model.source.huggingFace.nodeCache", "cache", "does not match"),
    ("model.source.huggingFace.repo", "a/..", "does not match"),
    *(("model.source.huggingFace.file", wrong, "does not match") for wrong in ("Q4_K_M", "../m.gguf", "-m.gguf")),
    *(("model.source.pvc.claim", wrong, "does not match") for wrong in ("Weights", "a..b")),
    *(
        ("model.source.image", wrong, "does not match")
        for wrong in ("Registry/Models:latest", "models:a:b", "https://registry/models", "models@sha256:12", " models")
    ),
    ("transfer.checksum", "yes", "must be true or false, not 'yes'"),
    ("transfer.transport", "Pigeon", "not 'Pigeon'"),
    ("transfer.rdma.resource", "ib", "ib"),
    ("transfer.rdma.count", 0, "0"),
    ("transfer.rdma.memoryLock", "Never", "'Never'"),
    ("scaling.mode", "Auto", "not 'Auto'"),
    ("scaling.decode.min", -1, "must be at least 0, not -1"),
    ("scaling.maxDecodePerPrefill", 10**12, "at most 10000"),
    ("scaling.gpuBudget", 10**12, "at most 1000000"),
    *(
        ("rollout.maxSurge", wrong, "(0 to 10000, or 0% to 100%)")
        for wrong in ("25", "101%", "-1%", "1.5%", "025%", -1, 10_001, 0.5, True)
    ),
    ("rollout.maxUnavailable", "half", "not a valid count or percentage: half"),
    ("rollout.autoRollback", "yes", "true or false"),
    ("rollout.canary.weight", 0, "at least 1"),
    ("rollout.canary.weight", 51, "at most 50"),
    ("rollout.canary.interval", "soon", "not a valid duration"),
    ("rollout.canary.minRequests", 9, "at least 10"),
    ("rollout.canary.maxSlowdown", "20%", "whole number"),
    ("decode.resources.requests.cpu", "many", "not a valid quantity: many"),
    ("decode.resources.requests", {"cpus": 2}, "must be cpu, memory"),
    *(("prefill.resources.limits", {wrong: 1}, "must be cpu, memory") for wrong in ("Memory", "nvidia.com/")),
]
WRONG = [
    *((_with(path, value), f"spec.{path}", message) for path, value, message in FIELDS),
    ({"engine": {"runner": "Paced", "profile": "--x"}}, "spec.engine.profile", "does not match"),
    ({"model": {}}, "spec.model.source", "required field is missing"),
    ({"model": {**BESIDE["model"], "adapters": [{"name": "a"}]}}, "spec.model.adapters.0.source", "required field"),
    ({"gateway": {"ingress": {}}}, "spec.gateway.ingress.hosts", "required field is missing"),
    ({"gateway": {"httpRoute": {"hostnames": ["a"]}}}, "spec.gateway.httpRoute.parentRefs", "required field"),
    ({"gateway": {"httpRoute": {"parentRefs": [{"namespace": "a"}]}}}, "spec.gateway.httpRoute.parentRefs.0.name", ""),
    ({"transfer": {"rdma": {}}}, "spec.transfer.rdma.resource", "required"),
    # And some that break a rule.
    (_with("model.source", {}), "spec.model.source", "exactly one of builtin"),
    (
        {"decode": {"resources": {"requests": {"cpu": 4}, "limits": {"cpu": "3900m"}}}},
        "spec.decode.resources.limits",
        "must not be below requests",
    ),
    (
        {"model": {**BESIDE["model"], "servedName": "m", "adapters": [{"name": "m", "source": {"path": "/a"}}]}},
        "spec.model.adapters",
        "must differ from one another and from servedName",
    ),
]


def _worker(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


# Parts of a worker's template that the operator relies on, and where they are refused.
RESERVED = [
    ({"kind": "Pod"}, "kind"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"name": "x"}}, "metadata.name"),
    ({"metadata": {"labels": {"a": 1}}}, "metadata.labels"),
    ({"metadata": {"labels": {"serving.legato.dev/role": "x"}}}, "metadata.labels.serving.legato.dev/role"),
    ({"metadata": {"labels": {"app.kubernetes.io/name": "x"}}}, "metadata.labels.app.kubernetes.io/name"),
    ({"metadata": {"annotations": {"app.kubernetes.io/name": "x"}}}, "metadata.annotations.app.kubernetes.io/name"),
    ({"spec": 1}, "spec"),
    *(({"spec": {name: "x"}}, f"spec.{name}") for name in ("restartPolicy", "hostname", "subdomain")),
    *(({"spec": {name: 1}}, f"spec.{name}") for name in ("terminationGracePeriodSeconds", "activeDeadlineSeconds")),
    ({"spec": {"containers": {}}}, "spec.containers"),
    *(({"spec": {name: [{"image": "x"}]}}, f"spec.{name}") for name in ("containers", "initContainers", "volumes")),
    *((_worker(**{name: ["x"]}), f"spec.containers[worker].{name}") for name in ("args", "command")),
    (_worker(ports=[{"containerPort": 1}]), "spec.containers[worker].ports"),
    (_worker(livenessProbe={}), "spec.containers[worker].livenessProbe"),
    (_worker(env=[{"name": "LEGATO_TOKEN", "value": "x"}]), "spec.containers[worker].env.LEGATO_TOKEN"),
]
