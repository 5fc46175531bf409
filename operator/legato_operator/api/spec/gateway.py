"""`spec.gateway` and `spec.routing`: limits, access, and the routing of requests."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, WithJsonSchema

from legato_operator.api import pod_template
from legato_operator.api.spec.compute_resources import Resources
from legato_operator.api.spec.manifest_part import ManifestPart, ObjectName
from legato_operator.api.spec.routes import HTTPRoutePart, IngressPart
from legato_operator.api.spec.scalars import Duration, Memory, Network, Origin, PodImage, Tenant, Weight
from legato_protocol.settings.parsers import ReasoningSetting, ToolCallSetting

MOST: Final = 10**12  # no limit in practice


class APIKeys(ManifestPart):
    """Location of the hashes of API keys; exactly one field must be set."""

    secret: ObjectName | None = None
    """The Secret that holds them, under the key `api-keys.json`. Changes take effect without a restart."""
    path: Annotated[str, Field(min_length=1, pattern=r"^[^-]")] | None = None
    """The file that holds them, for a gateway that is a local process."""


class GatewayTLS(ManifestPart):
    """Location of the certificate for clients and its private key; exactly one field must be set."""

    secret: ObjectName | None = None
    """The Secret that holds them, of the type kubernetes.io/tls. Changes take effect without a restart."""
    path: Annotated[str, Field(min_length=1, pattern=r"^[^-]")] | None = None
    """The folder that holds them as tls.crt and tls.key, for a gateway that is a local process."""


class InternalTLSSpec(ManifestPart):
    """Encryption of connections between a service's processes, and from the operator to them."""

    secret: ObjectName
    """The Secret with tls.crt, tls.key and ca.crt, of the type kubernetes.io/tls, for the name
    SERVICE-workers.NAMESPACE.svc. Changes take effect without a restart."""
    mode: Literal["Permissive", "Strict"] = "Permissive"
    """Permissive also accepts connections without TLS, so that pods from before and after a change work together.
    Strict does not; a service changes to and from it by way of Permissive."""


class ResponseStoreSpec(ManifestPart):
    retention: Duration = 3600.0
    """Time for which a response is stored."""
    memory: Memory = 64 << 20
    """Maximum memory of all stored responses. The largest tenant's oldest responses are dropped first."""


class GatewayLimits(ManifestPart):
    """Limits of one gateway."""

    max_output_tokens: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    """Maximum number of tokens of an answer, whatever a request asks for. Limited only by maxLength if not given."""
    max_queued_requests: Annotated[int, Field(ge=0, le=MOST)] = 2048
    """Maximum number of requests in a gateway's queue."""
    max_queued_tokens: Annotated[int, Field(ge=0, le=MOST)] = 4_000_000
    """Maximum number of prompt tokens of the requests in a gateway's queue."""
    max_retries: Annotated[int, Field(ge=0, le=1000)] = 8
    """Maximum number of consecutive failures of a request, without a token between them, before it fails."""
    max_body_size: Memory = 8 << 20
    """Maximum size of a request's body."""
    max_pending_bodies_size: Memory = 96 << 20
    """Maximum size of all bodies being received or prepared; at least twice maxBodySize."""
    max_connections: Annotated[int, Field(ge=1, le=MOST)] = 4096
    """Maximum number of client connections."""
    idle_timeout: Duration = 620.0
    """Time after which a connection that is idle between two requests is closed."""
    head_timeout: Duration = 30.0
    """Maximum time for a request's head, and before it for the TLS handshake."""
    min_body_rate: Annotated[int, Field(ge=0, le=MOST)] = 1024
    """Minimum bytes per second of a body, over 30 s; 0 for no minimum."""
    index_blocks: Annotated[int, Field(ge=0, le=MOST)] = 1 << 20
    """Maximum number of blocks in the index of workers' prefix caches, about 300 bytes each."""


class GatewayStreams(ManifestPart):
    """Streaming of answers."""

    start: Literal["Admission", "FirstToken"] = "Admission"
    """Start of the response: at Admission, or with the FirstToken, so that earlier errors get their own HTTP status."""
    keep_alive: Duration = 15.0
    """Time without data after which a comment line is sent."""
    slow_client: Literal["Pause", "Disconnect"] = "Pause"
    """Policy for a client that leaves bufferTokens unread: Pause its generation, or Disconnect it."""
    buffer_tokens: Annotated[int, Field(ge=1, le=MOST)] = 1024
    """Maximum number of tokens that a client may leave unread."""


class GatewaySpec(ManifestPart):
    image: PodImage | None = None
    """Image of gateways; the operator's default if not given. Upgrades of the operator do not change it."""
    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    """Number of gateways."""
    resources: Resources = Resources()
    """CPU and memory of one gateway. Requests default to 100m CPU and 256Mi memory."""
    template: Annotated[dict[str, Any], WithJsonSchema(pod_template.schema(pod_template.GATEWAY))] = {}
    """Merged into the pods: metadata.labels, metadata.annotations, and fields of a pod's spec."""
    default_deadline: Duration = 600.0
    """Maximum time without progress (to the first token, and between tokens) of a request without the header
    x-legato-deadline."""
    max_duration: Duration | None = None
    """Maximum total time of a request, whatever its progress; 168h if not given."""
    when_late: Literal["Queue", "Refuse"] = "Queue"
    """Policy for a request whose first token would come after slo.ttft: Queue it, or Refuse it with Retry-After."""
    limits: GatewayLimits = GatewayLimits()
    """Limits of each gateway."""
    streams: GatewayStreams = GatewayStreams()
    """Streaming of answers."""
    tenant_tokens_per_minute: dict[Tenant, Annotated[int, Field(ge=1, le=10**12)]] = {}
    """Quota of tokens per minute by tenant; "*" applies to each other tenant. No limit if not given."""
    tenant_max_output_tokens: dict[Tenant, Annotated[int, Field(ge=1, le=1 << 24)]] = {}
    """Maximum number of tokens of an answer by tenant, if less than limits.maxOutputTokens; "*" applies to each other
    tenant. No further limit if not given."""
    api_keys: APIKeys | None = None
    """API keys that clients need, and the tenants they belong to. If not given, anyone can send requests."""
    tls: GatewayTLS | None = None
    """Certificate for clients, which then connect with TLS. If not given, gateways serve plain HTTP."""
    http_route: HTTPRoutePart | None = None
    """An HTTPRoute of the Gateway API for clients outside the cluster. None if not given."""
    ingress: IngressPart | None = None
    """An Ingress for clients outside the cluster. None if not given."""
    trusted_proxies: Annotated[list[Network], Field(max_length=64)] = []
    """Networks of proxies that are trusted to name a request's tenant in the header x-legato-tenant."""
    allowed_origins: Annotated[list[Origin], Field(max_length=64)] = []
    """Origins of web pages that may call the API (CORS), or "*" for all. None if not given."""
    access_log: Literal["Text", "JSON", "Off"] = "Text"
    """Format of the line that gateways log for each request, or Off."""
    tool_call_parser: ToolCallSetting = "Auto"
    """Format of the model's tool calls. Auto derives it from the chat template; Off rejects requests with tools."""
    reasoning_parser: ReasoningSetting = "Auto"
    """Format of the model's reasoning. Auto derives it from the chat template; Off leaves reasoning in the text."""
    response_store: ResponseStoreSpec | None = None
    """Stores responses of /v1/responses in the gateway's memory; needs replicas: 1. Not stored if not given."""


class RoutingWeights(ManifestPart):
    prefix_cache: Weight = 2.0
    """Cost of a second of prompt computation, relative to a second of waiting in a queue. Higher values reuse prefixes
    that a worker has cached; lower values spread load."""
    kv_cache_utilization: Weight = 1.0
    """Cost of a full KV cache, in seconds of waiting."""
    step_time: Weight = 20.0
    """Number of output tokens for which the time of a worker's decode steps counts."""
    adapter: Weight = 0.5
    """Cost of loading an adapter first, in seconds of waiting."""


class Routing(ManifestPart):
    local_prefill_below_tokens: Annotated[int, Field(ge=0, le=1 << 24)] = 64
    """Prompts with fewer uncached tokens than this are prefilled by the decode worker itself."""
    when_prefill_unavailable: Literal["Local", "Wait", "Fail"] = "Local"
    """Policy without a prefill worker: Local (decode workers prefill), Wait or Fail."""
    when_prefill_busy: Literal["Local", "Wait"] = "Local"
    """Policy when prefill workers would miss slo.ttft: Local (decode workers on other cores help if sooner) or Wait."""
    kv_sharing: Literal["Auto", "Off"] = "Auto"
    """Auto: workers fetch cached KV from each other where that is predicted to be faster than computing it."""
    on_worker_failure: Literal["Retry", "Fail"] = "Retry"
    """Policy for requests of a worker that died or cannot be reached: Retry on another worker, or Fail."""
    weights: RoutingWeights = RoutingWeights()
    """Weights of the terms by which a worker is chosen."""
