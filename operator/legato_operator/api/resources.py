"""Types of the custom resources: every field with its default. Only `spec.model.source` is required.

The text below a field is its description, also in the CRDs that `crd` generates from these types. Rules over several
fields are in `rules`; `field_errors` words the errors.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, model_validator

from legato_operator.api import pod_template
from legato_operator.api.spec.compute_resources import Resources
from legato_operator.api.spec.gateway import GatewaySpec, InternalTLSSpec, Routing
from legato_operator.api.spec.manifest_part import ManifestPart, Name
from legato_operator.api.spec.model import DraftSource, Model
from legato_operator.api.spec.rdma import RDMA
from legato_operator.api.spec.scalars import (
    BlockSize,
    ChunkTokens,
    Count,
    CountOrPercentage,
    Degree,
    Duration,
    MaxRunning,
    Memory,
    MemoryOrAuto,
    PodImage,
    ServiceName,
)
from legato_operator.cluster import Ref
from legato_protocol.settings import values


class SpeculationSpec(ManifestPart):
    """Drafted tokens, which steps verify: several tokens of a sequence in one step, and the same text."""

    method: Literal["PromptLookup", "Draft"]
    """PromptLookup drafts the tokens that followed the same text earlier in the sequence, Draft asks a small model."""
    model: DraftSource | None = None
    """With method Draft, a small model with the same tokenizer. Its weights and KV take a part of workers' memory."""
    tokens: Annotated[int, Field(ge=1, le=7)] = 4
    """Maximum number of tokens drafted of a sequence for one step; fewer or none while more would not pay."""


class DiskKVSpec(ManifestPart):
    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/")]
    """Folder on the worker's machine or in its pod, on a local disk; several workers may share it."""
    size: Memory
    """Size of each worker's files."""


class Engine(ManifestPart):
    image: PodImage | None = None
    """Image of workers; the operator's default if not given. Upgrades of the operator do not change it."""
    block_size: BlockSize = "Auto"
    """Tokens in a block of KV cache: 8, 16, 32, 64, 128, or Auto: 16 on CPUs, 64 on GPUs."""
    kv_cache_memory: MemoryOrAuto = 512 << 20
    """Size of each worker's KV cache. Auto uses the memory that weights and workspace leave free at start."""
    host_kv_memory: Annotated[Memory | None, Field(alias="hostKVMemory")] = None
    """Host memory of each worker for blocks that its KV cache evicts and may restore; none if not given."""
    disk_kv: Annotated[DiskKVSpec | None, Field(alias="diskKV")] = None
    """Files for blocks of hostKVMemory, which a restarted worker finds again; none if not given."""
    chunk_tokens: ChunkTokens = "Auto"
    """Maximum prompt tokens in one step: 16 to 1048576, or Auto: 256 on CPUs, 2048 on GPUs. slo.tpot may shorten it."""
    max_running: MaxRunning = None
    """Maximum number of sequences running on a worker at the same time: 1 to 4096, or Auto: limited by its KV cache."""
    output_reservation: Literal["Expected", "Maximum"] = "Expected"
    """Output for which KV cache is reserved before a sequence starts: as Expected, or the Maximum (max_tokens)."""
    speculation: SpeculationSpec | None = None
    """Drafts tokens and verifies several in one step, where that is faster; none if not given."""
    dtype: Literal["Auto", "BFloat16", "Float16", "Float32"] = "Auto"
    """Data type of weights and KV. Auto selects the fastest that the processor supports."""
    quantization: Literal["None", "FP8", "Int8"] = "None"
    """Format that weights of linear layers are rounded to while they are loaded. For models that are not quantized."""
    kv_cache_dtype: Literal["Auto", "BFloat16", "FP8", "Float32"] = "Auto"
    """Data type of the KV cache, if not the one that dtype selects. FP8 (e4m3) halves its size and costs accuracy."""
    numerics: Literal["Fast", "Invariant"] = "Fast"
    """Fast uses the fastest kernels. Invariant (logits independent of the batch) is rejected: not available yet."""
    on_kernel_failure: Literal["Auto", "Stop", "Torch"] = "Auto"
    """Policy without compiled kernels: Stop, or compute with Torch's slower operators. Auto: Torch only on CPUs."""
    runner: Literal["Model", "Paced"] = "Model"
    """Model computes. Paced computes nothing, takes the time given by profile, and returns meaningless text."""
    profile: Annotated[str, Field(min_length=1, pattern=r"^[^-]")] | None = None
    """With runner Paced, a shipped profile, or the path of a JSON file where the worker runs."""
    hang_timeout: Duration = 15.0
    """Time without a sign of life after which a worker counts as hung; longer if its steps take long."""
    start_timeout: Duration = 600.0
    """Time without progress after which a worker's starting compute process is restarted."""


class Parallelism(ManifestPart):
    tensor: Degree = 1
    """Ranks that each layer is sharded over: 1, 2, 4 or 8 processes of a worker, each on one of its GPUs."""


class Pool(ManifestPart):
    resources: Resources = Resources()
    """CPU, memory and GPUs of one worker."""
    parallelism: Parallelism = Parallelism()
    """Sharding of a worker over the GPUs of its node. The pools may differ."""
    template: Annotated[dict[str, Any], WithJsonSchema(pod_template.schema(pod_template.WORKER))] = {}
    """Merged into the pods: metadata.labels, metadata.annotations, and fields of a pod's spec."""
    replicas: Count | None = None
    """Number of workers; required with scaling.mode Fixed, not allowed otherwise."""


class Transfer(ManifestPart):
    transport: Literal["Auto", "RDMA", "TCP", "SharedMemory"] = "Auto"
    """Transport of KV. Auto is RDMA if its self-test passes, else TCP. SharedMemory is rejected on Kubernetes."""
    required: bool = False
    """If true, workers refuse to start without this transport instead of falling back from RDMA to TCP."""
    on_failure: Literal["Retry", "Recompute", "Fail"] = "Retry"
    """Policy after a failed hand-off: Retry, Recompute on the decode worker, or Fail the request."""
    checksum: bool = True
    """Verifies the checksum of every block that is handed off."""
    node_memory: Literal["On", "Off"] | None = None
    """Workers of one node read KV from each other's memory; if not given, only on one machine and with transport Auto.
    On Kubernetes, pods share the node's IPC namespace for that (hostIPC)."""
    rdma: RDMA | None = None
    """RDMA resources of the pods of both pools; none if not given. No effect on one machine."""


class Slo(ManifestPart):
    ttft: Duration = 1.0
    """Objective for the time to the first token."""
    tpot: Duration = 0.1
    """Objective for the time of each later token; decode workers shorten prompt chunks to meet it."""


class Bounds(ManifestPart):
    min: Count = 1
    """Minimum number of workers; 1 if not given (0 if max is 0). The initial number, or 1 if it is 0."""
    max: Count = 4
    """Maximum number of workers; 4 if not given."""

    @model_validator(mode="before")
    @classmethod
    def _no_pool_needs_no_minimum(cls, value: object) -> object:
        if isinstance(value, Mapping) and value.get("max") == 0 and "min" not in value:
            return {**value, "min": 0}
        return value


class TracingSpec(ManifestPart):
    endpoint: Annotated[str, Field(pattern=values.COLLECTOR, max_length=500)] | None = None
    """Address of an OpenTelemetry collector (OTLP over HTTP) that receives traces at /v1/traces. None if not given."""
    sampling_rate_per_million: Annotated[int, Field(ge=0, le=1_000_000)] = 1_000_000
    """Requests traced per million, among those whose client has not decided."""


class Scaling(ManifestPart):
    mode: Literal["Managed", "Advisory", "External", "Fixed"] = "Managed"
    """Owner of the pools' replicas: Managed (the operator), External (an HPA, for example) or Fixed (the manifest).
    Advisory is External, with the operator's own decisions reported in `status.scaling`."""
    prefill: Bounds = Bounds()
    """Bounds of the prefill pool, except with Fixed."""
    decode: Bounds = Bounds()
    """Bounds of the decode pool, except with Fixed."""
    scale_down_stabilization: Duration = 300.0
    """A pool shrinks only to the largest size wanted within this time, with Managed and Advisory."""
    idle_after: Duration = 600.0
    """A pool with min 0 loses its last worker once nothing arrived or ran for this time, with Managed and Advisory."""
    gpu_budget: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum number of GPUs of both pools together; no limit if not given."""
    max_prefill_per_decode: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Maximum number of prefill workers for each decode worker."""
    max_decode_per_prefill: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Maximum number of decode workers for each prefill worker."""


class Drain(ManifestPart):
    deadline: Duration = 120.0
    """Time in which the sequences of a draining worker must migrate or finish."""


class CanarySpec(ManifestPart):
    weight: Annotated[int, Field(ge=1, le=50)] = 10
    """Percentage of workers that start, and of requests that they get at most in the first comparison: 1 to 50. If they
    had less load than old ones, a comparison under equal load follows."""
    interval: Duration = 300.0
    """Minimum time of each comparison. A worse revision is rolled back earlier."""
    min_requests: Annotated[int, Field(ge=10, le=1_000_000)] = 100
    """Minimum number of requests of each revision for a decision."""
    max_slowdown: Annotated[int, Field(ge=1, le=1000)] = 20
    """Percentage by which TTFT and TPOT of the new revision may exceed the old one's."""


class Rollout(ManifestPart):
    max_surge: CountOrPercentage = 1
    """Maximum workers above the desired number during a rollout: a number, or a percentage of it, rounded up."""
    max_unavailable: CountOrPercentage = 0
    """Maximum unready workers during a rollout: a number, or a percentage of the desired number, rounded down."""
    progress_deadline: Duration = 1800.0
    """Time in which a new worker must become ready, downloads included; otherwise its revision has failed."""
    auto_rollback: bool = False
    """Replaces workers of a failed revision by workers of the last good one; otherwise the rollout stops."""
    canary: CanarySpec | None = None
    """Gives a new revision a share of requests first, compares it with the old one, and promotes it or rolls it back.
    None if not given."""

    @property
    def rolls_back(self) -> bool:
        """True if a failed revision is replaced by the last good one."""
        return self.auto_rollback or self.canary is not None


class Spec(ManifestPart):
    model: Model
    """The model to serve."""
    engine: Engine = Engine()
    """Settings that all workers share."""
    prefill: Pool = Pool()
    """The workers that compute the KV cache of prompts."""
    decode: Pool = Pool()
    """The workers that generate tokens."""
    gateway: GatewaySpec = GatewaySpec()
    """The OpenAI-compatible API server."""
    routing: Routing = Routing()
    """Routing of requests to workers."""
    transfer: Transfer = Transfer()
    """Hand-offs of KV between workers."""
    internal_tls: Annotated[InternalTLSSpec | None, Field(alias="internalTLS")] = None
    """TLS between gateways, workers and the operator. If not given, they communicate without encryption."""
    tracing: TracingSpec = TracingSpec()
    """Traces of requests."""
    slo: Slo = Slo()
    """Latency objectives."""
    scaling: Scaling = Scaling()
    """Sizes of the pools."""
    drain: Drain = Drain()
    """Draining of workers."""
    rollout: Rollout = Rollout()
    """Replacement of workers of an old revision."""

    @property
    def disaggregated(self) -> bool:
        """True if prefill has its own pool; otherwise the decode pool holds `unified` workers."""
        return bool(self.prefill.replicas if self.scaling.mode == "Fixed" else self.scaling.prefill.max)


class ObjectMeta(ManifestPart):
    name: Name
    namespace: Name = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ServiceMeta(ObjectMeta):
    name: ServiceName


class InferenceService(ManifestPart):
    api_version: Literal["serving.legato.dev/v1alpha1"]
    kind: Literal["InferenceService"]
    metadata: ServiceMeta
    spec: Spec

    @property
    def served_name(self) -> str:
        return self.spec.model.served_name or self.metadata.name

    @property
    def ref(self) -> Ref:
        """The identity of its object."""
        return Ref(self.kind, self.metadata.namespace, self.metadata.name)


class WorkerPoolSpec(ManifestPart):
    service: Name
    """The InferenceService that the pool belongs to."""
    role: Literal["prefill", "decode"]
    """Role of its workers."""
    replicas: Count | None = None
    """Desired number of workers: set by the autoscaler with scaling.mode Managed, otherwise by an HPA or a person."""


class WorkerPool(ManifestPart):
    api_version: Literal["serving.legato.dev/v1alpha1"]
    kind: Literal["WorkerPool"]
    metadata: ObjectMeta
    spec: WorkerPoolSpec
