"""The custom resources as types: what a user may write, with every default. Only `spec.model.source` is required.

The text below a field is its description, also in the CRDs that `crd` makes from these types. Rules that span several
fields are in `combinations`; how a refusal is worded is in `field_errors`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from legato_operator.api import quantities

SHORTEST, LONGEST = 0.001, 7 * 86400.0  # seconds
MOST_MEMORY = 1 << 50  # bytes


class Part(BaseModel):
    """A part of a manifest: frozen, spelled in camelCase, and without unknown fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, use_attribute_docstrings=True
    )


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_quantity(text: str) -> str:
    quantities.quantity(text)
    return text


def _seconds(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no duration; write for example 10m, 1s or 100ms")
    result = quantities.duration(value)
    if not SHORTEST <= result <= LONGEST:
        raise ValueError(f"{value!r} must be from 1ms to 168h")
    return result


def _bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is no amount of memory; write for example 512Mi or 2Gi")
    result = quantities.memory(str(value))
    if result > MOST_MEMORY:
        raise ValueError(f"{value!r} must be at most 1Pi")
    return result


Quantity = Annotated[
    str, BeforeValidator(_number_as_text), AfterValidator(_check_quantity), WithJsonSchema(quantities.QUANTITY_SCHEMA)
]
Duration = Annotated[float, BeforeValidator(_seconds), WithJsonSchema(quantities.DURATION_SCHEMA)]  # seconds
Memory = Annotated[int, BeforeValidator(_bytes), WithJsonSchema(quantities.MEMORY_SCHEMA)]  # bytes
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$")]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]  # any Kubernetes object
ServiceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]  # leaves room for -prefill-123
ServedName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/@+ ]*$")]
Tenant = Annotated[str, Field(min_length=1, max_length=512)]
Count = Annotated[int, Field(ge=0, le=10_000)]


class HuggingFace(Part):
    """A repository on the Hugging Face hub."""

    repo: Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$", max_length=200)]
    """The repository's name, `owner/name`."""
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    """A commit of 40 hex digits, so that all workers load the same weights."""
    token_secret: ObjectName | None = None
    """The Secret with an access token, under the key `token`."""
    node_cache: Annotated[str, Field(pattern=r"^/[^:]*$", max_length=4096)] | None = None
    """A folder of every node, writable for user 65532, in which what was downloaded stays for the next pod there."""


class Claim(Part):
    """A folder on a volume."""

    claim: ObjectName
    """The PersistentVolumeClaim, in the service's namespace."""
    path: str = ""
    """The GGUF file or Hugging Face folder in it; the volume's root if not given."""


class Source(Part):
    """Where the weights are: exactly one of these."""

    builtin: Literal["smollm2-135m-instruct"] | None = None
    """A small model that comes with the installation."""
    hugging_face: HuggingFace | None = None
    """A repository on the Hugging Face hub, at one commit."""
    pvc: Claim | None = None
    """A folder on a PersistentVolumeClaim."""
    path: Annotated[str, Field(min_length=1, pattern=r"^[^-]")] | None = None
    """A GGUF file, or a Hugging Face folder with safetensors, on the machine (on Kubernetes: of every node)."""
    image: Annotated[str, Field(min_length=1)] | None = None
    """An image that holds the weights, mounted as an image volume."""


class Model(Part):
    source: Source
    """Where the weights are: exactly one of builtin, huggingFace, pvc, path and image."""
    served_name: (
        Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._:/@+ ]*$")] | None
    ) = None
    """What clients put into `model`; the service's name if not given."""
    max_length: Annotated[int, Field(ge=16, le=1 << 24)] = 4096
    """Longest sequence, prompt and answer, in tokens."""


class Engine(Part):
    block_size: Literal[8, 16, 32, 64, 128] = 16
    """Tokens in a block of KV cache."""
    kv_cache_memory: Memory = 512 << 20
    """Memory of the KV cache of each worker."""
    chunk_tokens: Annotated[int, Field(ge=16, le=1 << 20)] = 512
    """Most prompt tokens of one step; long prompts are computed in such chunks."""
    dtype: Literal["Auto", "BFloat16", "Float16", "Float32"] = "Auto"
    """Number format of weights and KV. Auto takes the fastest of the processor."""
    numerics: Literal["Fast", "Invariant"] = "Fast"
    """Fast uses the fastest kernels; Invariant makes a token's logits independent of batch, chunking and cache."""


class Resources(Part):
    requests: dict[str, Quantity] = {}
    """What one worker is promised. `cpu` also sets its compute threads."""
    limits: dict[str, Quantity] = {}
    """What one worker may take at most, enforced on Kubernetes."""


class Parallelism(Part):
    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Over how many GPUs one worker spreads each layer."""


class Pool(Part):
    resources: Resources = Resources()
    """CPU, memory and GPUs of one worker."""
    parallelism: Parallelism = Parallelism()
    """How one worker spreads over GPUs."""
    template: dict[str, Any] = {}
    """Additions to the pods: metadata.labels, metadata.annotations, and fields of a pod's spec."""
    replicas: Count | None = None
    """Number of workers; required with scaling.mode Fixed, refused otherwise."""


class Gateway(Part):
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many gateways share the requests."""
    default_deadline: Duration = 600.0
    """By when a request ends, unless its header x-legato-deadline says otherwise."""
    tenant_tokens_per_minute: dict[Tenant, Annotated[int, Field(ge=1, le=10**12)]] = {}
    """Tokens a minute by tenant; "*" is each other tenant's. No limit if not given."""


class Routing(Part):
    local_prefill_below_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = 64
    """With fewer uncached prompt tokens than this, the decode worker prefills itself."""
    when_prefill_unavailable: Literal["Local", "Wait", "Fail"] = "Local"
    """Without a prefill worker: Local (decode workers prefill), Wait or Fail."""


class Transfer(Part):
    transport: Literal["Auto", "RDMA", "TCP", "SharedMemory"] = "Auto"
    """What carries KV between workers. Auto is TCP, RDMA has to be asked for."""
    required: bool = False
    """Without this transport the service is not Ready, instead of falling back."""
    on_failure: Literal["Retry", "Recompute", "Fail"] = "Retry"
    """After a failed hand-off: Retry it, Recompute on the decode worker, or Fail the request."""
    checksum: bool = True
    """Verify every block that was handed over."""


class Slo(Part):
    ttft: Duration = 1.0
    """Objective for the time to the first token."""
    tpot: Duration = 0.1
    """Objective for the time of each later token."""


class Bounds(Part):
    min: Count = 1
    """Fewest workers, and how many there are at first; 1 if not given (0 where max is 0)."""
    max: Count = 4
    """Most workers; 4 if not given."""

    @model_validator(mode="before")
    @classmethod
    def _no_pool_needs_no_minimum(cls, value: object) -> object:
        if isinstance(value, Mapping) and value.get("max") == 0 and "min" not in value:
            return {**value, "min": 0}
        return value


class Scaling(Part):
    mode: Literal["Managed", "External", "Fixed"] = "Managed"
    """Who writes the pools' replicas: the operator, others (HPA, KEDA, kubectl scale), or the manifest."""
    prefill: Bounds = Bounds()
    """Bounds of the prefill pool, with Managed and External."""
    decode: Bounds = Bounds()
    """Bounds of the decode pool, with Managed and External."""
    gpu_budget: Annotated[int, Field(ge=1)] | None = None
    """Most GPUs of both pools together; no limit if not given."""
    max_prefill_per_decode: Annotated[int, Field(ge=1)] = 4
    """Most prefill workers for each decode worker."""
    max_decode_per_prefill: Annotated[int, Field(ge=1)] = 4
    """Most decode workers for each prefill worker."""


class Drain(Part):
    deadline: Duration = 120.0
    """How long the sequences of a leaving worker have to move elsewhere or to end."""


class Rollout(Part):
    max_surge: Count = 1
    """So many more workers than wanted may exist while a revision is replaced."""
    max_unavailable: Count = 0
    """So many fewer workers than wanted may be ready while a revision is replaced."""
    progress_deadline: Duration = 1800.0
    """By when a new worker is ready, downloads included; a revision with one that is not has failed."""
    auto_rollback: bool = False
    """Put workers of the last good revision in the place of a failed one's. Otherwise the rollout only stops."""


class Spec(Part):
    model: Model
    """What is served."""
    engine: Engine = Engine()
    """Settings that all workers share."""
    prefill: Pool = Pool()
    """The workers that compute the KV cache of prompts."""
    decode: Pool = Pool()
    """The workers that generate tokens."""
    gateway: Gateway = Gateway()
    """The OpenAI-compatible front door."""
    routing: Routing = Routing()
    """Which workers a request goes to."""
    transfer: Transfer = Transfer()
    """Hand-offs of KV between workers."""
    slo: Slo = Slo()
    """Latency objectives, for the autoscaler."""
    scaling: Scaling = Scaling()
    """How many workers the pools have."""
    drain: Drain = Drain()
    """How a worker leaves."""
    rollout: Rollout = Rollout()
    """How workers of an old revision are replaced."""

    @property
    def disaggregated(self) -> bool:
        """Whether prefill has a pool of its own; otherwise the decode pool holds `unified` workers."""
        return bool(self.prefill.replicas if self.scaling.mode == "Fixed" else self.scaling.prefill.max)


class Metadata(Part):
    name: Name
    namespace: Name = "default"
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class ServiceMetadata(Metadata):
    name: ServiceName


class InferenceService(Part):
    api_version: Literal["serving.legato.dev/v1alpha1"]
    kind: Literal["InferenceService"]
    metadata: ServiceMetadata
    spec: Spec

    @property
    def served_name(self) -> str:
        return self.spec.model.served_name or self.metadata.name


class WorkerPoolSpec(Part):
    service: Name
    """The InferenceService that the pool belongs to."""
    role: Literal["prefill", "decode"]
    """What its workers do."""
    replicas: Count | None = None
    """A wish, written by whoever scales: the operator with scaling.mode Managed, an HPA or a person with External."""


class WorkerPool(Part):
    api_version: Literal["serving.legato.dev/v1alpha1"]
    kind: Literal["WorkerPool"]
    metadata: Metadata
    spec: WorkerPoolSpec
