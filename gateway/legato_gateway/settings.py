"""The settings of a gateway: flags and their meaning, read once into frozen `GatewaySettings`.

The only place of the gateway that reads the environment. It only imports the standard library, the protocol and the
switch of traces, so that the command line stays fast.
"""

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from legato_protocol import names
from legato_protocol.settings import durations, flags, values
from legato_protocol.settings.flags import (
    DURATION,
    FILE,
    FOLDER,
    HOST,
    PORT_OR_FREE,
    SettingsError,
    ValueKind,
    kubernetes_name,
    real,
    text,
    whole,
)
from legato_protocol.settings.parsers import ReasoningSetting, ToolCallSetting
from legato_telemetry import switch

_KUBECONFIG: Final = "KUBECONFIG"  # the name that all clients of Kubernetes use
_MOST: Final = 10**12
_MOST_WEIGHT: Final = 1000.0


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


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Times in seconds. Workers come from a file, from a Service, or by name; otherwise there are none.

    Annotations are the kind and the help of a field's flag, see `flags.from_annotations`.
    """

    model: Annotated[str, text("MODEL"), "path, hf:REPO[:FILE]@COMMIT or builtin:NAME; its tokenizer is used"]
    served_name: Annotated[str, text("NAME"), "the model's name for clients; by default --model's own"] = ""
    max_length: Annotated[
        int | None,
        whole("TOKENS", 2, 10**8),
        "longest sequence, prompt and answer; the shortest limit that workers report if not given",
    ] = None  # None: the limit that workers report
    adapters: Annotated[
        tuple[str, ...], text("NAME"), "a LoRA adapter that workers have, which clients name as a model", "--adapter"
    ] = ()
    adapters_file: Annotated[
        Path | None, FILE, "JSON list of adapters that clients can name, read again when it changes"
    ] = None
    host: Annotated[str, HOST, "address to listen on; :: is every address of both IP families"] = "127.0.0.1"
    port: Annotated[int, PORT_OR_FREE, "port to listen on; 0 takes a free one"] = names.GATEWAY_PORT
    listen_fd: Annotated[
        int | None, whole("NUMBER", 3, 10**6), "inherited listening socket to serve on, instead of --port"
    ] = None
    health_port: Annotated[
        int | None, PORT_OR_FREE, "port for probes of this process alone and for /metrics; 0 takes a free one"
    ] = None  # None: probes are only answered at `port`, and there are no metrics
    control_port: Annotated[
        int | None, PORT_OR_FREE, "port of /demand, /state and /ui, for who has the service's token; 0 takes a free one"
    ] = None  # None: demand and state are not served
    control_tls_port: Annotated[int, PORT_OR_FREE, "the same over TLS; only with --internal-tls-folder"] = (
        names.CONTROL_TLS_PORT
    )
    announce: Annotated[Path | None, FILE, "write the ports in use to this file, as JSON"] = None
    workers_file: Annotated[Path | None, FILE, 'JSON list of {"worker", "address", "tls"}, watched for changes'] = None
    workers: Annotated[tuple[tuple[str, str], ...], ValueKind("NAME=HOST:PORT", _worker), "a worker", "--worker"] = ()
    workers_service: Annotated[
        str, kubernetes_name("NAME"), "headless Service whose EndpointSlices list the workers"
    ] = ""
    namespace: Annotated[str, kubernetes_name("NAME"), "namespace of that Service"] = ""
    default_deadline: Annotated[
        float, DURATION, "longest time without a token of a request that has no deadline of its own"
    ] = 600.0
    max_duration: Annotated[float, DURATION, "longest time of a request, however much progress it makes"] = (
        durations.LONGEST
    )
    drain_deadline: Annotated[float, DURATION, "time to finish requests after SIGTERM"] = 120.0
    local_prefill_below_tokens: Annotated[
        int, whole("TOKENS", 0, _MOST), "decode workers prefill prompts with fewer uncached tokens than this themselves"
    ] = 64
    when_prefill_unavailable: Annotated[Literal["Local", "Wait", "Fail"], "POLICY", "without a prefill worker: "] = (
        "Local"
    )
    when_prefill_busy: Annotated[Literal["Local", "Wait"], "POLICY", "when prefill workers would miss --slo-ttft: "] = (
        "Local"
    )
    when_late: Annotated[Literal["Queue", "Refuse"], "POLICY", "requests that would miss --slo-ttft: "] = "Queue"
    slo_ttft: Annotated[float, DURATION, "time to the first token, beyond which prefill workers are busy"] = 1.0
    slo_tpot: Annotated[
        float,
        DURATION,
        "time per output token: decode workers compute prompts within it, and hand sequences on above it",
    ] = 0.1
    prefix_cache_weight: Annotated[
        float,
        real("WEIGHT", 0, _MOST_WEIGHT),
        "in routing, what a second of computing counts against one of waiting in a queue",
    ] = 2.0
    kv_cache_utilization_weight: Annotated[
        float, real("WEIGHT", 0, _MOST_WEIGHT), "in routing, how many seconds of waiting a full KV cache counts for"
    ] = 1.0
    step_time_weight: Annotated[
        float, real("TOKENS", 0, _MOST_WEIGHT), "in routing, for how many output tokens the time of decode steps counts"
    ] = 20.0
    adapter_weight: Annotated[
        float,
        real("WEIGHT", 0, _MOST_WEIGHT),
        "in routing, how many seconds of waiting an adapter counts for that has to be loaded first",
    ] = 0.5
    transfer_on_failure: Annotated[Literal["Retry", "Recompute", "Fail"], "POLICY", "after a failed hand-off: "] = (
        "Retry"
    )
    kv_sharing: Annotated[Literal["Auto", "Off"], "POLICY", "fetch cached blocks from other workers: "] = "Auto"
    on_worker_failure: Annotated[
        Literal["Retry", "Fail"], "POLICY", "for requests of a worker that died or cannot be reached: "
    ] = "Retry"
    max_output_tokens: Annotated[
        int | None,
        whole("TOKENS", 1, _MOST),
        "longest answer, whatever a request asks for; only --max-length bounds it if not given",
    ] = None
    max_queued_requests: Annotated[int, whole("COUNT", 0, _MOST), "most requests held in the gateway"] = 2048
    max_queued_tokens: Annotated[int, whole("TOKENS", 0, _MOST), "most prompt tokens of these requests"] = 4_000_000
    slow_client: Annotated[Literal["Pause", "Disconnect"], "POLICY", "for a client that reads too slowly: "] = "Pause"
    buffer_tokens: Annotated[int, whole("TOKENS", 1, _MOST), "most tokens that a client may leave unread"] = 1024
    worker_silence: Annotated[float, DURATION, "treat a worker as hung when it is silent for this long"] = 15.0
    max_retries: Annotated[
        int, whole("COUNT", 0, 1000), "most faults in a row, without a token between them, of a request"
    ] = 8
    max_body_bytes: Annotated[int, whole("BYTES", 1024, _MOST), "largest request body"] = 8 << 20
    max_pending_body_bytes: Annotated[
        int,
        whole("BYTES", 2048, _MOST),
        "most bytes of all bodies that are received or prepared; at least twice --max-body-bytes",
    ] = 96 << 20
    max_connections: Annotated[int, whole("COUNT", 1, _MOST), "most connections of clients"] = 4096
    head_timeout: Annotated[float, DURATION, "most time for a request's head, and before that for a TLS handshake"] = (
        30.0
    )
    min_body_rate: Annotated[int, whole("BYTES", 0, _MOST), "least bytes per second of a body, over 30 s; 0: none"] = (
        1024
    )
    idle_timeout: Annotated[float, DURATION, "close a connection that is idle for this long between two requests"] = (
        620.0
    )
    stream_start: Annotated[Literal["Admission", "FirstToken"], "EVENT", "when the response of a stream begins: "] = (
        "Admission"
    )
    stream_keep_alive: Annotated[
        float,
        real("SECONDS", 0, durations.LONGEST),
        "send a comment line when nothing was sent on a stream for this many seconds; 0: never",
    ] = 15.0
    index_blocks: Annotated[int, whole("BLOCKS", 0, _MOST), "most blocks in the KV index"] = 1 << 20
    access_log: Annotated[Literal["Text", "JSON", "Off"], "FORMAT", "a line for each request: "] = "Text"
    tool_call_parser: Annotated[ToolCallSetting, "FORMAT", "how the model writes calls of tools: "] = "Auto"
    response_retention: Annotated[
        float | None, DURATION, "store responses of /v1/responses for this long; never if not given"
    ] = None  # None: responses are not stored
    response_memory: Annotated[int, whole("BYTES", 1 << 20, _MOST), "most bytes of all stored responses"] = 64 << 20
    reasoning_parser: Annotated[ReasoningSetting, "FORMAT", "how the model marks its reasoning: "] = "Auto"
    generation_config: Annotated[
        Literal["Model", "None"],
        "SOURCE",
        "whose defaults for sampling count where a request gives none: Model (its generation_config.json), or None",
    ] = "Model"
    tenant_quotas: Annotated[
        tuple[tuple[str, int], ...],
        ValueKind("TENANT=TOKENS", _quota),
        "a tenant's tokens per minute; * stands for each tenant without its own quota",
        "--tenant-quota",
    ] = ()
    tenant_max_output: Annotated[
        tuple[tuple[str, int], ...],
        ValueKind("TENANT=TOKENS", _quota),
        "longest answer of a tenant, if less than --max-output-tokens; * stands for each tenant without its own",
        "--tenant-max-output-tokens",
    ] = ()
    api_keys_file: Annotated[
        Path | None, FILE, "JSON file with hashes of the API keys that clients need, read again when it changes"
    ] = None  # None: clients need no key
    tls_certificate_file: Annotated[
        Path | None, FILE, "PEM file with the certificate for clients, and those that signed it"
    ] = None  # with its key: clients connect with TLS
    tls_key_file: Annotated[
        Path | None, FILE, "PEM file with its private key; both are read again when they change"
    ] = None
    internal_tls_folder: Annotated[
        Path | None,
        FOLDER,
        "folder with tls.crt, tls.key and ca.crt of the service's processes, read again when they change",
    ] = None
    internal_tls_name: Annotated[str, text("NAME"), "name that workers' certificates must be for"] = ""
    internal_tls_mode: Annotated[
        Literal["Permissive", "Strict"],
        "MODE",
        "Permissive takes workers with and without TLS; Strict speaks TLS alone, at the control port too",
    ] = "Permissive"
    token_folder: Annotated[Path | None, FOLDER, "folder with the service's tokens, read again when they change"] = None
    trusted_proxies: Annotated[
        tuple[IPv4Network | IPv6Network, ...],
        ValueKind("NETWORK", values.network),
        "network of proxies whose x-legato-tenant and X-Forwarded-For are believed, such as 10.0.0.0/8",
        "--trusted-proxy",
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        ValueKind("ORIGIN", values.origin),
        "origin of web pages that may call the API (CORS), such as https://chat.example.com; * for all",
        "--allowed-origin",
    ] = ()
    # without a flag
    kubeconfig: str = ""  # access to the cluster of `workers_service`; empty: as a pod of it
    hold_without_workers: bool = False
    traces: bool = False  # sent to the endpoint in OpenTelemetry's standard variables
    token: str = field(default="", repr=False)
    parent: int = 0  # process id that this one must not outlive; 0: none

    @property
    def plain_control(self) -> bool:
        """True if connections without TLS are allowed, to workers and at the control port."""
        return self.internal_tls_mode != "Strict"


_FLAGS: Final = flags.from_annotations(GatewaySettings)


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
