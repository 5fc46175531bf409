"""The custom resources as types: what a user may write, with every default. Only `spec.model.source` is required.

The text below a field is its description, also in the CRDs that `crd` makes from these types. Rules that span several
fields are in `rules`; how a refusal is worded is in `field_errors`.
"""

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    WithJsonSchema,
    model_validator,
)

from legato_operator.api import pod_template, quantities
from legato_operator.api.manifest_part import CONFIG, Name, ObjectName
from legato_operator.api.routes import HTTPRoutePart, IngressPart
from legato_protocol import durations, sizes, values

LONGEST_SERVICE_NAME = 40  # leaves room for -prefill-123


class ManifestPart(BaseModel):
    """A part of a manifest: frozen, spelled in camelCase, and without unknown fields."""

    model_config = CONFIG


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_quantity(text: str) -> str:
    quantities.quantity(text)
    return text


def _check_network(text: str) -> str:
    values.network(text)
    return text


def _bytes_or_auto(value: object) -> int | None:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    with contextlib.suppress(ValueError):
        size = sizes.parse_or_auto(text)
        if size is None or size >= quantities.LEAST_MEMORY:
            return size
    raise values.invalid("size", text, f"write 512Mi, 1.5Gi or 1073741824; {quantities.MEMORY_RANGE}, or {sizes.AUTO}")


def _bytes(value: object) -> int:
    with contextlib.suppress(ValueError):
        if (size := _bytes_or_auto(value)) is not None:
            return size
    raise values.invalid("size", str(value), f"write 512Mi, 1.5Gi or 1073741824; {quantities.MEMORY_RANGE}")


Quantity = Annotated[
    str, BeforeValidator(_number_as_text), AfterValidator(_check_quantity), WithJsonSchema(quantities.QUANTITY_SCHEMA)
]
Duration = Annotated[float, BeforeValidator(durations.parse), WithJsonSchema(quantities.DURATION_SCHEMA)]  # seconds
MemoryOrAuto = Annotated[  # bytes; None: Auto
    int | None, BeforeValidator(_bytes_or_auto), WithJsonSchema(quantities.MEMORY_OR_AUTO_SCHEMA)
]
Memory = Annotated[int, BeforeValidator(_bytes), WithJsonSchema(quantities.MEMORY_SCHEMA)]  # bytes
ServiceName = Annotated[str, Field(pattern=rf"^[a-z]([-a-z0-9]{{0,{LONGEST_SERVICE_NAME - 2}}}[a-z0-9])?$")]
Amounts = Annotated[dict[str, Quantity], Field(max_length=16)]  # by resource
ServedName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/@+ ]*$")]
Tenant = Annotated[str, Field(min_length=1, max_length=512)]
Network = Annotated[str, AfterValidator(_check_network), WithJsonSchema(quantities.NETWORK_SCHEMA)]
Origin = Annotated[str, Field(pattern=values.ORIGIN, max_length=300)]
Count = Annotated[int, Field(ge=0, le=quantities.MOST_WORKERS)]
CountOrPercentage = Annotated[
    int | str,
    BeforeValidator(quantities.count_or_percentage),
    WithJsonSchema(quantities.COUNT_OR_PERCENTAGE_SCHEMA),
]


class Resources(ManifestPart):
    requests: Amounts = {}
    """Resource requests. `cpu` of a worker also sets its number of compute threads."""
    limits: Amounts = {}
    """Resource limits, enforced on Kubernetes."""

    @property
    def given(self) -> bool:
        """Whether anything is said."""
        return bool(self.requests or self.limits)


class HuggingFace(ManifestPart):
    """A repository on the Hugging Face hub."""

    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_.]*/[A-Za-z0-9_][-A-Za-z0-9_.]*$", max_length=200)]
    """The repository's name, `owner/name`."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """A commit of 40 hex digits, so that all workers load the same weights."""
    token_secret: ObjectName | None = None
    """The Secret with an access token, under the key `token`."""
    node_cache: Annotated[str, Field(pattern=r"^/[^:]*$", max_length=4096)] | None = None
    """A directory of every node, writable for user 65532, that keeps downloads for later pods of the node."""
    resources: Resources = Resources()
    """CPU and memory of the container that downloads the model before a worker or a gateway starts."""


class Claim(ManifestPart):
    """A directory on a volume."""

    claim: ObjectName
    """The PersistentVolumeClaim, in the service's namespace."""
    path: Annotated[str, Field(max_length=4096)] = ""
    """Path of the GGUF file or Hugging Face directory in the volume; its root if not given."""


class Source(ManifestPart):
    """Where the weights are; exactly one field must be set."""

    builtin: Literal["smollm2-135m-instruct"] | None = None
    """A small model that is included in the installation."""
    hugging_face: HuggingFace | None = None
    """A repository on the Hugging Face hub, at one commit."""
    pvc: Claim | None = None
    """A directory on a PersistentVolumeClaim."""
    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^-]")] | None = None
    """A GGUF file, or a Hugging Face directory with safetensors, on the machine (on Kubernetes: on every node)."""
    image: Annotated[str, Field(max_length=500, pattern=quantities.IMAGE)] | None = None
    """An image that holds the weights, mounted as an image volume: Kubernetes 1.35 or newer."""


class AdapterClaim(ManifestPart):
    """A directory on a volume."""

    claim: ObjectName
    """The PersistentVolumeClaim, in the service's namespace."""
    path: Annotated[str, Field(max_length=4096)] = ""
    """Path of the adapter's directory in the volume; its root if not given."""


class AdapterSource(ManifestPart):
    """Where an adapter is; exactly one field must be set."""

    pvc: AdapterClaim | None = None
    """A directory on a PersistentVolumeClaim."""
    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^-]")] | None = None
    """A directory as PEFT saves it, on the machine (on Kubernetes: on every node)."""
    image: Annotated[str, Field(max_length=500, pattern=quantities.IMAGE)] | None = None
    """An image that holds the adapter, mounted as an image volume: Kubernetes 1.35 or newer."""


class Adapter(ManifestPart):
    """A LoRA adapter of the model."""

    name: ServedName
    """Model name that clients put into requests."""
    source: AdapterSource
    """Where the adapter is; exactly one of pvc, path and image must be set."""


class Model(ManifestPart):
    source: Source
    """Where the weights are; exactly one of builtin, huggingFace, pvc, path and image must be set."""
    served_name: ServedName | None = None
    """Model name that clients put into requests; the service's name if not given."""
    max_length: Annotated[int, Field(ge=16, le=1 << 24)] = 4096
    """Maximum number of tokens of a sequence, prompt and output together."""
    generation_config: Literal["Model", "None"] = "Model"
    """Defaults for sampling where a request gives none: the Model's (generation_config.json), or None of them."""
    adapters: Annotated[list[Adapter], Field(max_length=32)] = []
    """LoRA adapters, each served under its name beside the model."""
    adapters_in_memory: Annotated[int, Field(ge=1, le=1024)] = 8
    """Maximum number of adapters in the memory of a worker; others are loaded as needed."""
    max_adapter_rank: Annotated[int, Field(ge=1, le=1024)] = 64
    """Maximum rank of an adapter; workers do not start with one of a higher rank."""


PodImage = Annotated[str, Field(max_length=500, pattern=quantities.IMAGE)]


class Engine(ManifestPart):
    image: PodImage | None = None
    """Image of workers; the operator's default if not given. Another version of the operator leaves it as it is."""
    block_size: Literal[8, 16, 32, 64, 128] = 16
    """Tokens in a block of KV cache."""
    kv_cache_memory: MemoryOrAuto = 512 << 20
    """Size of the KV cache of each worker. Auto takes what is free beside weights and workspace when it starts."""
    chunk_tokens: Annotated[int, Field(ge=16, le=1 << 20)] = 512
    """Maximum number of prompt tokens in one step; fewer beside sequences that decode, to keep slo.tpot."""
    output_reservation: Literal["Expected", "Maximum"] = "Expected"
    """Output that KV cache is left for before a sequence starts: as much as Expected, or the Maximum (max_tokens)."""
    dtype: Literal["Auto", "BFloat16", "Float16", "Float32"] = "Auto"
    """Data type of weights and KV. Auto selects the fastest that the processor supports."""
    kv_cache_dtype: Literal["Auto", "BFloat16", "Float32"] = "Auto"
    """Data type of the KV cache, where it is to be another one than that which dtype selects. On CPUs without AMX."""
    numerics: Literal["Fast", "Invariant"] = "Fast"
    """Fast uses the fastest kernels. Invariant (logits that no batch changes) is rejected: it is not available yet."""
    runner: Literal["Model", "Paced"] = "Model"
    """Model computes. Paced computes nothing and takes the time that profile says: its text means nothing."""
    profile: Annotated[str, Field(min_length=1, pattern=r"^[^-]")] | None = None
    """With runner Paced, a shipped profile, or the path of a JSON file where the worker runs."""
    hang_timeout: Duration = 15.0
    """Time without a sign of life after which a worker has hung, and longer where its steps take long."""


class Parallelism(ManifestPart):
    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of GPUs that each layer is sharded over. More than 1 is not available yet and is rejected."""


class Pool(ManifestPart):
    resources: Resources = Resources()
    """CPU, memory and GPUs of one worker."""
    parallelism: Parallelism = Parallelism()
    """How a worker is sharded over GPUs: not available yet."""
    template: Annotated[dict[str, Any], WithJsonSchema(pod_template.schema(pod_template.WORKER))] = {}
    """Merged into the pods: metadata.labels, metadata.annotations, and fields of a pod's spec."""
    replicas: Count | None = None
    """Number of workers; required with scaling.mode Fixed, not allowed otherwise."""


class APIKeys(ManifestPart):
    """Where the hashes of API keys are; exactly one field must be set."""

    secret: ObjectName | None = None
    """The Secret that holds them, under the key `api-keys.json`. Changes take effect without a restart."""
    path: Annotated[str, Field(min_length=1, pattern=r"^[^-]")] | None = None
    """The file that holds them, where the gateway is a process of this machine."""


class GatewayTLS(ManifestPart):
    """Where the certificate for clients and its private key are; exactly one field must be set."""

    secret: ObjectName | None = None
    """The Secret that holds them, of the type kubernetes.io/tls. Changes take effect without a restart."""
    path: Annotated[str, Field(min_length=1, pattern=r"^[^-]")] | None = None
    """The folder that holds them as tls.crt and tls.key, where the gateway is a process of this machine."""


class InternalTLS(ManifestPart):
    """What encrypts the connections between a service's processes, and the operator's to them."""

    secret: ObjectName
    """The Secret with tls.crt, tls.key and ca.crt, of the type kubernetes.io/tls, for the name
    SERVICE-workers.NAMESPACE.svc. Changes take effect without a restart."""
    mode: Literal["Permissive", "Strict"] = "Permissive"
    """Permissive also accepts connections without TLS, so that pods from before and after a change work together.
    Strict does not; a service changes to it, and from it, by way of Permissive."""


class ResponseStoreSpec(ManifestPart):
    retention: Duration = 3600.0
    """How long a response is stored."""
    memory: Memory = 64 << 20
    """Most memory of all stored responses. The oldest of the tenant that holds most are dropped first."""


class GatewaySpec(ManifestPart):
    image: PodImage | None = None
    """Image of gateways; the operator's default if not given. Another version of the operator leaves it as it is."""
    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of gateways."""
    resources: Resources = Resources()
    """CPU and memory of one gateway. A CPU or memory that is not named gets a request of 100m or 256Mi."""
    template: Annotated[dict[str, Any], WithJsonSchema(pod_template.schema(pod_template.GATEWAY))] = {}
    """Merged into the pods: metadata.labels, metadata.annotations, and fields of a pod's spec."""
    default_deadline: Duration = 600.0
    """Deadline of requests without the header x-legato-deadline."""
    tenant_tokens_per_minute: dict[Tenant, Annotated[int, Field(ge=1, le=10**12)]] = {}
    """Quota of tokens per minute by tenant; "*" applies to each other tenant. No limit if not given."""
    api_keys: APIKeys | None = None
    """API keys that clients need, and the tenants that they are of. Without it, everyone may ask."""
    tls: GatewayTLS | None = None
    """Certificate for clients, which then connect with TLS. Without it, gateways serve plain HTTP."""
    http_route: HTTPRoutePart | None = None
    """An HTTPRoute of the Gateway API by which clients outside the cluster reach the gateways. None if not given."""
    ingress: IngressPart | None = None
    """An Ingress by which clients outside the cluster reach the gateways. None if not given."""
    trusted_proxies: Annotated[list[Network], Field(max_length=64)] = []
    """Networks of proxies that say in the header x-legato-tenant whose request it is."""
    allowed_origins: Annotated[list[Origin], Field(max_length=64)] = []
    """Origins of web pages that may call the API (CORS), or "*" for all. None if not given."""
    access_log: Literal["Text", "JSON", "Off"] = "Text"
    """Format of the line that gateways log for each request, or Off."""
    tool_call_parser: Literal["Auto", "Hermes", "Llama3Json", "Mistral", "Pythonic", "Off"] = "Auto"
    """Format in which the model writes calls of tools. Auto goes by its chat template; Off refuses tools."""
    reasoning_parser: Literal["Auto", "Think", "Mistral", "Off"] = "Auto"
    """Marks between which the model reasons. Auto goes by its chat template; Off leaves reasoning in the text."""
    response_store: ResponseStoreSpec | None = None
    """Stores responses of /v1/responses in the gateway's memory. Without it none are stored. Needs one replica."""


Weight = Annotated[float, Field(ge=0, le=1000)]


class RoutingWeights(ManifestPart):
    prefix_cache: Weight = 2.0
    """What a second of computing a prompt counts against one of waiting in a queue. Higher values avoid computing a
    prefix again that another worker holds; lower values spread load."""
    kv_cache_utilization: Weight = 1.0
    """How many seconds of waiting a full KV cache counts for."""
    step_time: Weight = 20.0
    """For how many output tokens the time of a worker's decode steps counts."""
    adapter: Weight = 0.5
    """How many seconds of waiting it counts for that an adapter has to be loaded first."""


class Routing(ManifestPart):
    local_prefill_below_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = 64
    """Prompts with fewer uncached tokens than this are prefilled by the decode worker itself."""
    when_prefill_unavailable: Literal["Local", "Wait", "Fail"] = "Local"
    """What happens without a prefill worker: Local (decode workers prefill), Wait or Fail."""
    weights: RoutingWeights = RoutingWeights()
    """What counts how much when a worker is chosen."""


class Transfer(ManifestPart):
    transport: Literal["Auto", "RDMA", "TCP", "SharedMemory"] = "Auto"
    """Transport of KV between workers. Auto is TCP; RDMA must be requested. Kubernetes rejects SharedMemory."""
    required: bool = False
    """Whether the service is not Ready without this transport, instead of falling back."""
    on_failure: Literal["Retry", "Recompute", "Fail"] = "Retry"
    """What happens after a failed hand-off: Retry, Recompute on the decode worker, or Fail the request."""
    checksum: bool = True
    """Whether to verify the checksum of every block that is handed off."""


class Slo(ManifestPart):
    ttft: Duration = 1.0
    """Objective for the time to the first token."""
    tpot: Duration = 0.1
    """Objective for the time of each later token; decode workers shorten the chunks of prompts to keep it."""


class Bounds(ManifestPart):
    min: Count = 1
    """Minimum number of workers; 1 if not given (0 if max is 0). A pool begins with it, and with 1 where it is 0."""
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
    """Address of an OpenTelemetry collector (OTLP over HTTP), which gets traces at /v1/traces. None if not given."""
    sampling_rate_per_million: Annotated[int, Field(ge=0, le=1_000_000)] = 1_000_000
    """How many of a million requests are traced, of those whose client has not decided."""


class Scaling(ManifestPart):
    mode: Literal["Managed", "Advisory", "External", "Fixed"] = "Managed"
    """Who sets the pools' replicas: Managed (the operator), External (an HPA, for example) or Fixed (the manifest).
    Advisory is External, and the operator tells in `status.scaling` what it would have set."""
    prefill: Bounds = Bounds()
    """Bounds of the prefill pool, except with Fixed."""
    decode: Bounds = Bounds()
    """Bounds of the decode pool, except with Fixed."""
    scale_down_stabilization: Duration = 900.0
    """A pool shrinks only to the largest size that was wanted in this time, with Managed and Advisory."""
    idle_after: Duration = 600.0
    """A pool with min 0 loses its last worker when nothing arrived or ran for this time, with Managed and Advisory."""
    gpu_budget: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Maximum number of GPUs of both pools together; no limit if not given."""
    max_prefill_per_decode: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Maximum number of prefill workers for each decode worker."""
    max_decode_per_prefill: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Maximum number of decode workers for each prefill worker."""


class Drain(ManifestPart):
    deadline: Duration = 120.0
    """How long the sequences of a draining worker have to migrate or finish."""


class Rollout(ManifestPart):
    max_surge: CountOrPercentage = 1
    """Most workers above the desired number during a rollout: a number, or a percentage of it, rounded up."""
    max_unavailable: CountOrPercentage = 0
    """Most workers below the desired number that are unready in a rollout: a number, or a percentage, rounded down."""
    progress_deadline: Duration = 1800.0
    """Time in which a new worker must become ready, downloads included; otherwise its revision has failed."""
    auto_rollback: bool = False
    """Whether workers of a failed revision are replaced by those of the last good one; if not, the rollout stops."""


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
    """How requests are routed to workers."""
    transfer: Transfer = Transfer()
    """Hand-offs of KV between workers."""
    internal_tls: Annotated[InternalTLS | None, Field(alias="internalTLS")] = None
    """TLS between gateways, workers and the operator. Without it, they speak in the clear."""
    tracing: TracingSpec = TracingSpec()
    """Traces of requests."""
    slo: Slo = Slo()
    """Latency objectives."""
    scaling: Scaling = Scaling()
    """Sizes of the pools."""
    drain: Drain = Drain()
    """How workers are drained."""
    rollout: Rollout = Rollout()
    """How workers of an old revision are replaced."""

    @property
    def disaggregated(self) -> bool:
        """Whether prefill has a pool of its own; otherwise the decode pool holds `unified` workers."""
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
