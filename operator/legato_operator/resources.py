"""The custom resources as types: what a user may write, with every default. Only `spec.model.source` is required.

Rules that span several fields are in `combinations`; how a refusal is worded is in `field_errors`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from legato_operator import combinations, field_errors, quantities, yaml_text
from legato_operator.errors import ManifestError
from legato_protocol import names


class Part(BaseModel):
    """A part of a manifest: frozen, spelled in camelCase, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)


def _number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_quantity(text: str) -> str:
    quantities.quantity(text)
    return text


def _seconds(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no duration; write for example 10m, 1s or 100ms")
    result = quantities.duration(value)
    if result <= 0:
        raise ValueError(f"{value!r} is not longer than nothing")
    return result


def _bytes(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is no amount of memory; write for example 512Mi or 2Gi")
    return quantities.memory(str(value))


Quantity = Annotated[str, BeforeValidator(_number_as_text), AfterValidator(_check_quantity)]
Duration = Annotated[float, BeforeValidator(_seconds)]  # seconds
Memory = Annotated[int, BeforeValidator(_bytes)]  # bytes
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$")]
ServiceName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$")]  # leaves room for -prefill-123
Tenant = Annotated[str, Field(min_length=1, max_length=512)]
Count = Annotated[int, Field(ge=0, le=10_000)]


class HuggingFace(Part):
    repo: str
    revision: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]  # a commit, so that all workers load the same weights
    token_secret: str | None = None


class Claim(Part):
    claim: str
    path: str = ""


class Source(Part):
    """Where the weights come from: exactly one of these."""

    builtin: Literal["smollm2-135m-instruct"] | None = None
    hugging_face: HuggingFace | None = None
    pvc: Claim | None = None
    path: Annotated[str, Field(min_length=1)] | None = None
    image: Annotated[str, Field(min_length=1)] | None = None


class Model(Part):
    source: Source
    served_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None  # the service's name if not given
    max_length: Annotated[int, Field(ge=16, le=1 << 24)] = 4096


class Engine(Part):
    block_size: Literal[8, 16, 32, 64, 128] = 16
    kv_cache_memory: Memory = 512 << 20
    chunk_tokens: Annotated[int, Field(ge=16, le=1 << 20)] = 512
    dtype: Literal["Auto", "BFloat16", "Float16", "Float32"] = "Auto"
    numerics: Literal["Fast", "Invariant"] = "Fast"


class Resources(Part):
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


class Parallelism(Part):
    tensor: Annotated[int, Field(ge=1, le=64)] = 1


class Pool(Part):
    resources: Resources = Resources()
    parallelism: Parallelism = Parallelism()
    template: dict[str, Any] = {}
    replicas: Count | None = None  # only with scaling.mode Fixed


class Gateway(Part):
    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    default_deadline: Duration = 600.0
    tenant_tokens_per_minute: dict[Tenant, Annotated[int, Field(ge=1, le=10**12)]] = {}  # "*" is everyone else


class Routing(Part):
    local_prefill_below_tokens: Annotated[int, Field(ge=0)] = 64
    when_prefill_unavailable: Literal["Local", "Wait", "Fail"] = "Local"


class Transfer(Part):
    transport: Literal["Auto", "RDMA", "TCP", "SharedMemory"] = "Auto"
    required: bool = False
    on_failure: Literal["Retry", "Recompute", "Fail"] = "Retry"
    checksum: bool = True


class Slo(Part):
    ttft: Duration = 1.0
    tpot: Duration = 0.1


class Bounds(Part):
    min: Count = 1
    max: Count = 4

    @model_validator(mode="before")
    @classmethod
    def _no_pool_needs_no_minimum(cls, value: object) -> object:
        if isinstance(value, Mapping) and value.get("max") == 0 and "min" not in value:
            return {**value, "min": 0}
        return value


class Scaling(Part):
    mode: Literal["Managed", "External", "Fixed"] = "Managed"
    prefill: Bounds = Bounds()
    decode: Bounds = Bounds()
    gpu_budget: Annotated[int, Field(ge=1)] | None = None  # none means no limit
    max_prefill_per_decode: Annotated[int, Field(ge=1)] = 4
    max_decode_per_prefill: Annotated[int, Field(ge=1)] = 4


class Drain(Part):
    deadline: Duration = 120.0


class Rollout(Part):
    max_surge: Count = 1
    max_unavailable: Count = 0


class Spec(Part):
    model: Model
    engine: Engine = Engine()
    prefill: Pool = Pool()
    decode: Pool = Pool()
    gateway: Gateway = Gateway()
    routing: Routing = Routing()
    transfer: Transfer = Transfer()
    slo: Slo = Slo()
    scaling: Scaling = Scaling()
    drain: Drain = Drain()
    rollout: Rollout = Rollout()

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
    role: Literal["prefill", "decode"]
    replicas: Count | None = None  # a wish, written by whoever scales


class WorkerPool(Part):
    api_version: Literal["serving.legato.dev/v1alpha1"]
    kind: Literal["WorkerPool"]
    metadata: Metadata
    spec: WorkerPoolSpec


def parse(text: str) -> InferenceService:
    """The service that a manifest's YAML text describes. Raises ManifestError with every problem found."""
    content = yaml_text.load(text)
    if not isinstance(content, dict):
        raise ManifestError(
            [("", f"a manifest is a mapping with apiVersion, kind, metadata and spec, not {content!r}")]
        )
    return read_service(content)


def read_service(content: Mapping[str, Any]) -> InferenceService:
    """The service in a manifest or in an object of the cluster. Raises ManifestError with every problem found."""
    try:
        service = InferenceService.model_validate(content)
    except ValidationError as error:
        raise ManifestError(field_errors.problems(error, InferenceService, content)) from None
    if problems := combinations.problems(service.spec):
        raise ManifestError(problems)
    return service


def service_from_object(stored: Mapping[str, Any]) -> InferenceService:
    """The service in an object that a cluster keeps, which has a status and metadata of the server beside it."""
    known = {field.alias for field in Metadata.model_fields.values()}
    metadata = {key: value for key, value in stored["metadata"].items() if key in known}
    return read_service({**{k: v for k, v in stored.items() if k != "status"}, "metadata": metadata})


def to_object(service: InferenceService, written: Mapping[str, Any]) -> dict[str, Any]:
    """What to apply for a service: its manifest as written, so that defaults stay defaults."""
    metadata = {**written["metadata"], "namespace": service.metadata.namespace}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.INFERENCE_SERVICE,
        "metadata": metadata,
        "spec": written["spec"],
    }
