"""The settings of a gateway: flags and their meaning, read once into frozen `GatewaySettings`.

The only place of the gateway that reads the environment. It only imports the standard library, the protocol and the
switch of traces, so that the command line stays fast.
"""

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Final, Literal

from legato_protocol import names
from legato_protocol.settings import durations, flags, values
from legato_protocol.settings.flags import Flag, SettingsError
from legato_telemetry import switch

SLOW_CLIENT = ("Pause", "Disconnect")
UNAVAILABLE = ("Local", "Wait", "Fail")
BUSY = ("Local", "Wait")
STREAM_START = ("Admission", "FirstToken")
ACCESS_LOG = ("Text", "JSON", "Off")
TLS_MODES = ("Permissive", "Strict")
TOOL_CALL_PARSER = ("Auto", "Hermes", "Llama3Json", "Mistral", "Pythonic", "Off")
REASONING_PARSER = ("Auto", "Think", "Mistral", "Off")
GENERATION_CONFIG = ("Model", "None")
ON_FAILURE = ("Retry", "Recompute", "Fail")
ON_WORKER_FAILURE = ("Retry", "Fail")

_KUBECONFIG: Final = "KUBECONFIG"  # the name that all clients of Kubernetes use


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Times in seconds. Workers come from a file, from a Service, or by name; otherwise there are none."""

    model: str
    served_name: str
    max_length: int | None = None  # None: the limit that workers report
    adapters: tuple[str, ...] = ()  # names of adapters that workers have
    adapters_file: Path | None = None  # lists them instead, and is followed
    host: str = "127.0.0.1"
    port: int = names.GATEWAY_PORT
    listen_fd: int | None = None  # an inherited listening socket, used instead of `port`
    health_port: int | None = None  # None: probes are only answered at `port`, and there are no metrics
    control_port: int | None = None  # None: demand and state are not served
    control_tls_port: int = names.CONTROL_TLS_PORT  # used with internal TLS
    announce: Path | None = None
    workers_file: Path | None = None
    workers: tuple[tuple[str, str], ...] = ()  # name, host:port
    workers_service: str = ""
    namespace: str = ""
    kubeconfig: str = ""  # access to the cluster of `workers_service`; empty: as a pod of it
    default_deadline: float = 600.0
    max_duration: float = durations.LONGEST
    drain_deadline: float = 120.0
    local_prefill_below_tokens: int = 64
    when_prefill_unavailable: Literal["Local", "Wait", "Fail"] = "Local"
    when_prefill_busy: Literal["Local", "Wait"] = "Local"
    slo_ttft: float = 1.0
    slo_tpot: float = 0.1
    prefix_cache_weight: float = 2.0
    kv_cache_utilization_weight: float = 1.0
    step_time_weight: float = 20.0
    adapter_weight: float = 0.5
    transfer_on_failure: Literal["Retry", "Recompute", "Fail"] = "Retry"
    on_worker_failure: Literal["Retry", "Fail"] = "Retry"
    hold_without_workers: bool = False
    max_output_tokens: int | None = None
    max_queued_requests: int = 2048
    max_queued_tokens: int = 4_000_000
    slow_client: Literal["Pause", "Disconnect"] = "Pause"
    buffer_tokens: int = 1024
    worker_silence: float = 15.0
    max_retries: int = 8
    max_body_bytes: int = 8 << 20
    index_blocks: int = 1 << 20
    max_pending_body_bytes: int = 96 << 20
    max_connections: int = 4096
    head_timeout: float = 30.0
    min_body_rate: int = 1024
    idle_timeout: float = 620.0
    stream_start: Literal["Admission", "FirstToken"] = "Admission"
    stream_keep_alive: float = 15.0
    access_log: Literal["Text", "JSON", "Off"] = "Text"
    tool_call_parser: Literal["Auto", "Hermes", "Llama3Json", "Mistral", "Pythonic", "Off"] = "Auto"
    reasoning_parser: Literal["Auto", "Think", "Mistral", "Off"] = "Auto"
    response_retention: float | None = None  # None: responses are not stored
    response_memory: int = 64 << 20
    generation_config: Literal["Model", "None"] = "Model"
    tenant_quotas: tuple[tuple[str, int], ...] = ()  # tenant ("*": all others), its tokens per minute
    tenant_max_output: tuple[tuple[str, int], ...] = ()  # likewise, maximum number of tokens of an answer
    traces: bool = False  # sent to the endpoint in OpenTelemetry's standard variables
    api_keys_file: Path | None = None  # None: clients need no key
    tls_certificate_file: Path | None = None  # with its key: clients connect with TLS
    tls_key_file: Path | None = None
    internal_tls_folder: Path | None = None  # with certificate, key and authority, which are followed
    internal_tls_name: str = ""  # the name in workers' certificates
    internal_tls_mode: Literal["Permissive", "Strict"] = "Permissive"
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    allowed_origins: tuple[str, ...] = ()  # of web pages that may call the API (CORS)
    token_folder: Path | None = None  # with the service's tokens, which are followed; None: `token` is the only one
    token: str = field(default="", repr=False)
    parent: int = 0  # process id that this one must not outlive; 0: none

    @property
    def plain_control(self) -> bool:
        """True if connections without TLS are allowed, to workers and at the control port."""
        return self.internal_tls_mode != "Strict"


def _worker(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    if not name:
        raise values.invalid("worker", text, "NAME=HOST:PORT, such as decode-0=10.0.0.1:8082")
    try:
        return values.printable(name, "name"), values.host_port(address)
    except ValueError:
        raise values.invalid("worker", text, "NAME=HOST:PORT, such as decode-0=10.0.0.1:8082") from None


def _quota(text: str) -> tuple[str, int]:
    tenant, _, tokens = text.rpartition("=")
    try:
        return values.printable(tenant, "tenant"), values.whole(tokens, 1, _MOST)
    except ValueError:
        raise values.invalid("quota", text, f"TENANT=TOKENS, such as team-a=60000; TOKENS from 1 to {_MOST}") from None


_MOST: Final = 10**12
_MOST_WEIGHT: Final = 1000.0
_FLAGS: Final = (
    Flag("--model", flags.text("MODEL"), "path, hf:REPO@COMMIT or builtin:NAME; its tokenizer is used"),
    Flag("--served-name", flags.text("NAME"), "the model's name for clients; by default --model's own", optional=True),
    Flag(
        "--max-length",
        flags.whole("TOKENS", 2, 10**8),
        "longest sequence, prompt and answer; the shortest limit that workers report if not given",
    ),
    Flag(
        "--adapter",
        flags.text("NAME"),
        "a LoRA adapter that workers have, which clients name as a model",
        field="adapters",
        repeated=True,
    ),
    Flag("--adapters-file", flags.FILE, "JSON list of adapters that clients can name, read again when it changes"),
    Flag("--host", flags.HOST, "address to listen on; :: is every address of both IP families"),
    Flag("--port", flags.PORT_OR_FREE, "port to listen on; 0 takes a free one"),
    Flag("--listen-fd", flags.whole("NUMBER", 3, 10**6), "inherited listening socket to serve on, instead of --port"),
    Flag(
        "--health-port",
        flags.PORT_OR_FREE,
        "port for probes of this process alone and for /metrics; 0 takes a free one",
    ),
    Flag(
        "--control-port",
        flags.PORT_OR_FREE,
        "port of /demand, /state and /ui, for who has the service's token; 0 takes a free one",
    ),
    Flag("--control-tls-port", flags.PORT_OR_FREE, "the same over TLS; only with --internal-tls-folder"),
    Flag("--announce", flags.FILE, "write the ports in use to this file, as JSON"),
    Flag("--workers-file", flags.FILE, 'JSON list of {"worker", "address", "tls"}, watched for changes'),
    Flag("--worker", flags.ValueKind("NAME=HOST:PORT", _worker), "a worker", field="workers", repeated=True),
    Flag("--workers-service", flags.kubernetes_name("NAME"), "headless Service whose EndpointSlices list the workers"),
    Flag("--namespace", flags.kubernetes_name("NAME"), "namespace of that Service"),
    Flag(
        "--default-deadline",
        flags.DURATION,
        "longest time without a token of a request that has no deadline of its own",
    ),
    Flag("--max-duration", flags.DURATION, "longest time of a request, however much progress it makes"),
    Flag("--drain-deadline", flags.DURATION, "time to finish requests after SIGTERM"),
    Flag(
        "--local-prefill-below-tokens",
        flags.whole("TOKENS", 0, _MOST),
        "decode workers prefill prompts with fewer uncached tokens than this themselves",
    ),
    Flag(
        "--when-prefill-unavailable",
        flags.one_of("POLICY", UNAVAILABLE),
        "without a prefill worker: " + ", ".join(UNAVAILABLE),
    ),
    Flag(
        "--when-prefill-busy",
        flags.one_of("POLICY", BUSY),
        "when prefill workers would miss --slo-ttft: " + ", ".join(BUSY),
    ),
    Flag("--slo-ttft", flags.DURATION, "time to the first token, beyond which prefill workers are busy"),
    Flag(
        "--slo-tpot",
        flags.DURATION,
        "time per output token: decode workers compute prompts within it, and hand sequences on above it",
    ),
    Flag(
        "--prefix-cache-weight",
        flags.real("WEIGHT", 0, _MOST_WEIGHT),
        "in routing, what a second of computing counts against one of waiting in a queue",
    ),
    Flag(
        "--kv-cache-utilization-weight",
        flags.real("WEIGHT", 0, _MOST_WEIGHT),
        "in routing, how many seconds of waiting a full KV cache counts for",
    ),
    Flag(
        "--step-time-weight",
        flags.real("TOKENS", 0, _MOST_WEIGHT),
        "in routing, for how many output tokens the time of decode steps counts",
    ),
    Flag(
        "--adapter-weight",
        flags.real("WEIGHT", 0, _MOST_WEIGHT),
        "in routing, how many seconds of waiting an adapter counts for that has to be loaded first",
    ),
    Flag(
        "--transfer-on-failure", flags.one_of("POLICY", ON_FAILURE), "after a failed hand-off: " + ", ".join(ON_FAILURE)
    ),
    Flag(
        "--on-worker-failure",
        flags.one_of("POLICY", ON_WORKER_FAILURE),
        "for requests of a worker that died or cannot be reached: " + ", ".join(ON_WORKER_FAILURE),
    ),
    Flag(
        "--max-output-tokens",
        flags.whole("TOKENS", 1, _MOST),
        "longest answer, whatever a request asks for; only --max-length bounds it if not given",
    ),
    Flag("--max-queued-requests", flags.whole("COUNT", 0, _MOST), "most requests held in the gateway"),
    Flag("--max-queued-tokens", flags.whole("TOKENS", 0, _MOST), "most prompt tokens of these requests"),
    Flag(
        "--slow-client",
        flags.one_of("POLICY", SLOW_CLIENT),
        "for a client that reads too slowly: " + ", ".join(SLOW_CLIENT),
    ),
    Flag("--buffer-tokens", flags.whole("TOKENS", 1, _MOST), "most tokens that a client may leave unread"),
    Flag("--worker-silence", flags.DURATION, "treat a worker as hung when it is silent for this long"),
    Flag(
        "--max-retries",
        flags.whole("COUNT", 0, 1000),
        "most faults in a row, without a token between them, of a request",
    ),
    Flag("--max-body-bytes", flags.whole("BYTES", 1024, _MOST), "largest request body"),
    Flag(
        "--max-pending-body-bytes",
        flags.whole("BYTES", 2048, _MOST),
        "most bytes of all bodies that are received or prepared; at least twice --max-body-bytes",
    ),
    Flag("--max-connections", flags.whole("COUNT", 1, _MOST), "most connections of clients"),
    Flag("--head-timeout", flags.DURATION, "most time for a request's head, and before that for a TLS handshake"),
    Flag("--min-body-rate", flags.whole("BYTES", 0, _MOST), "least bytes per second of a body, over 30 s; 0: none"),
    Flag("--idle-timeout", flags.DURATION, "close a connection that is idle for this long between two requests"),
    Flag(
        "--stream-start",
        flags.one_of("EVENT", STREAM_START),
        "when the response of a stream begins: " + ", ".join(STREAM_START),
    ),
    Flag(
        "--stream-keep-alive",
        flags.real("SECONDS", 0, durations.LONGEST),
        "send a comment line when nothing was sent on a stream for this many seconds; 0: never",
    ),
    Flag("--index-blocks", flags.whole("BLOCKS", 0, _MOST), "most blocks in the KV index"),
    Flag("--access-log", flags.one_of("FORMAT", ACCESS_LOG), "a line for each request: " + ", ".join(ACCESS_LOG)),
    Flag(
        "--tool-call-parser",
        flags.one_of("FORMAT", TOOL_CALL_PARSER),
        "how the model writes calls of tools: " + ", ".join(TOOL_CALL_PARSER),
    ),
    Flag("--response-retention", flags.DURATION, "store responses of /v1/responses for this long; never if not given"),
    Flag("--response-memory", flags.whole("BYTES", 1 << 20, _MOST), "most bytes of all stored responses"),
    Flag(
        "--reasoning-parser",
        flags.one_of("FORMAT", REASONING_PARSER),
        "how the model marks its reasoning: " + ", ".join(REASONING_PARSER),
    ),
    Flag(
        "--generation-config",
        flags.one_of("SOURCE", GENERATION_CONFIG),
        "whose defaults for sampling count where a request gives none: Model (its generation_config.json), or None",
    ),
    Flag(
        "--tenant-quota",
        flags.ValueKind("TENANT=TOKENS", _quota),
        "a tenant's tokens per minute; * stands for each tenant without its own quota",
        field="tenant_quotas",
        repeated=True,
    ),
    Flag(
        "--tenant-max-output-tokens",
        flags.ValueKind("TENANT=TOKENS", _quota),
        "longest answer of a tenant, if less than --max-output-tokens; * stands for each tenant without its own",
        field="tenant_max_output",
        repeated=True,
    ),
    Flag(
        "--api-keys-file",
        flags.FILE,
        "JSON file with hashes of the API keys that clients need, read again when it changes",
    ),
    Flag("--tls-certificate-file", flags.FILE, "PEM file with the certificate for clients, and those that signed it"),
    Flag("--tls-key-file", flags.FILE, "PEM file with its private key; both are read again when they change"),
    Flag(
        "--internal-tls-folder",
        flags.FOLDER,
        "folder with tls.crt, tls.key and ca.crt of the service's processes, read again when they change",
    ),
    Flag("--internal-tls-name", flags.text("NAME"), "name that workers' certificates must be for"),
    Flag(
        "--internal-tls-mode",
        flags.one_of("MODE", TLS_MODES),
        "Permissive takes workers with and without TLS; Strict speaks TLS alone, at the control port too",
    ),
    Flag("--token-folder", flags.FOLDER, "folder with the service's tokens, read again when they change"),
    Flag(
        "--trusted-proxy",
        flags.ValueKind("NETWORK", values.network),
        "network of proxies whose x-legato-tenant and X-Forwarded-For are believed, such as 10.0.0.0/8",
        field="trusted_proxies",
        repeated=True,
    ),
    Flag(
        "--allowed-origin",
        flags.ValueKind("ORIGIN", values.origin),
        "origin of web pages that may call the API (CORS), such as https://chat.example.com; * for all",
        field="allowed_origins",
        repeated=True,
    ),
)


def add_flags(parser: ArgumentParser) -> None:
    """Adds every setting as a flag. argparse refuses bad values; `read` checks combinations of flags."""
    flags.add(parser, _FLAGS, GatewaySettings)
    parser.add_argument(
        "--hold-without-workers",
        action="store_true",
        default=SUPPRESS,
        help="be ready before the first worker is, and hold requests for it",
    )


def read(given: Namespace, environ: Mapping[str, str]) -> GatewaySettings:
    """Reads settings from parsed flags and the environment. Raises SettingsError."""
    parsed = flags.given(given, GatewaySettings)
    _check_together(parsed)
    model = parsed["model"]
    settings = GatewaySettings(
        **{"served_name": Path(model.partition(":")[2] or model).stem} | parsed,
        kubeconfig=environ.get(_KUBECONFIG, ""),
        token=environ.get(names.ENV_TOKEN, ""),
        parent=flags.parent(environ),
        traces=switch.is_on(environ),
    )
    if settings.max_pending_body_bytes < 2 * settings.max_body_bytes:
        raise SettingsError(
            f"--max-pending-body-bytes is {settings.max_pending_body_bytes}: at least twice --max-body-bytes "
            f"({settings.max_body_bytes}) is needed, so that the largest body fits"
        )
    if settings.served_name in settings.adapters:
        raise SettingsError(f"--adapter: {settings.served_name} is the model's own name (--served-name)")
    has_token = bool(settings.token or settings.token_folder)
    if (
        (settings.control_port is not None or settings.internal_tls_folder)
        and not has_token
        and not values.is_loopback(settings.host)
    ):
        raise SettingsError(
            f"--host: {settings.host} is not a loopback address, and {names.ENV_TOKEN} is not set: the control port "
            f"would be open to everyone (set {names.ENV_TOKEN}, give --token-folder, or listen on 127.0.0.1)"
        )
    return settings


_ADAPTERS: Final = ("adapters", "adapters_file")
_PAIRS: Final = (
    ("workers_service", "namespace"),
    ("tls_certificate_file", "tls_key_file"),
    ("internal_tls_folder", "internal_tls_name"),
)


def _check_together(parsed: Mapping[str, Any]) -> None:
    for exclusive in (("workers", "workers_file", "workers_service"), ("port", "listen_fd"), _ADAPTERS):
        given = [flag.name for flag in _FLAGS if flag.dest in parsed and flag.dest in exclusive]
        if len(given) > 1:
            raise SettingsError(f"{' and '.join(given)} cannot be given together")
    if parsed.get("internal_tls_mode") == "Strict" and "internal_tls_folder" not in parsed:
        raise SettingsError("--internal-tls-mode: Strict needs --internal-tls-folder")
    for first, second in _PAIRS:
        if (first in parsed) != (second in parsed):
            named = [flag.name for flag in _FLAGS if flag.dest in (first, second)]
            raise SettingsError(f"{' and '.join(named)} must be given together")
