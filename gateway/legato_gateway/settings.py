"""What a gateway is told at its start: flags and their meaning, read once into frozen `GatewaySettings`.

The one place of the gateway that looks at the environment. A value that is not allowed raises SettingsError, whose text
names the flag and what is allowed. Only the standard library is imported, so that the command line stays quick.
"""

import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from legato_protocol import names
from legato_protocol.flags import SettingsError

SLOW_CLIENT = ("Pause", "Disconnect")
UNAVAILABLE = ("Local", "Wait", "Fail")
ON_FAILURE = ("Retry", "Recompute", "Fail")

_KUBECONFIG: Final = "KUBECONFIG"  # as all clients of Kubernetes call it
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Times in seconds. Workers come from a file, from a Service or are named; with none of these there are none."""

    model: str
    served_name: str
    max_length: int
    host: str = "127.0.0.1"
    port: int = names.GATEWAY_PORT
    listen_fd: int | None = None  # a listening socket that was inherited: `port` is not used
    health_port: int | None = None  # None: probes are answered at `port` alone
    announce: Path | None = None
    workers_file: Path | None = None
    workers: tuple[tuple[str, str], ...] = ()  # name, host:port
    workers_service: str = ""
    namespace: str = ""
    kubeconfig: str = ""  # how to reach the cluster of `workers_service`; empty: as a pod of it
    default_deadline: float = 600.0
    drain_deadline: float = 120.0
    local_prefill_below_tokens: int = 64
    when_prefill_unavailable: Literal["Local", "Wait", "Fail"] = "Local"
    transfer_on_failure: Literal["Retry", "Recompute", "Fail"] = "Retry"
    max_queued_requests: int = 2048
    max_queued_tokens: int = 4_000_000
    slow_client: Literal["Pause", "Disconnect"] = "Pause"
    buffer_tokens: int = 1024
    worker_silence: float = 5.0
    max_retries: int = 8
    max_body_bytes: int = 8 << 20
    index_blocks: int = 262_144
    tenant_quotas: tuple[tuple[str, int], ...] = ()  # tenant ("*" is every other one), its tokens per minute
    token: str = field(default="", repr=False)
    parent: int = 0  # process id that this one must not outlive; 0: it may outlive all


def add_flags(parser: ArgumentParser) -> None:
    """Every setting as a flag. Values stay text here: `read` judges them."""
    for flag, (_, text) in _FLAGS.items():
        parser.add_argument(f"--{flag}", metavar="VALUE", help=text)
    parser.add_argument(
        "--worker", metavar="NAME=HOST:PORT", action="append", default=[], help="a worker; may be given several times"
    )
    parser.add_argument(
        "--tenant-quota",
        metavar="TENANT=TOKENS",
        action="append",
        default=[],
        help="a tenant's tokens per minute, or with * each other tenant's; may be given several times",
    )


def read(flags: Namespace, environ: Mapping[str, str]) -> GatewaySettings:
    """The settings that these flags and the environment make. Raises SettingsError."""
    values: dict[str, Any] = {"token": environ.get(names.ENV_TOKEN, ""), "parent": _parent(environ)}
    values["kubeconfig"] = environ.get(_KUBECONFIG, "")
    for flag, (convert, _) in _FLAGS.items():
        given = getattr(flags, flag.replace("-", "_"), None)
        if given is None:
            continue
        try:
            values[flag.replace("-", "_")] = convert(given)
        except ValueError as error:
            raise SettingsError(f"--{flag} {given!r} is not allowed: {error}") from None
    for flag in ("model", "max-length"):
        if flag.replace("-", "_") not in values:
            raise SettingsError(f"--{flag} is missing")
    values["workers"] = tuple(_worker(given) for given in flags.worker)
    values["tenant_quotas"] = tuple(_quota(given) for given in flags.tenant_quota)
    sources = ("worker", bool(values["workers"])), *((f, f in values) for f in ("workers_file", "workers_service"))
    given = [f"--{flag.replace('_', '-')}" for flag, is_given in sources if is_given]
    if len(given) > 1:
        raise SettingsError(f"{' and '.join(given)} exclude each other")
    if ("workers_service" in values) != ("namespace" in values):
        raise SettingsError("--workers-service and --namespace go together")
    if "port" in values and "listen_fd" in values:
        raise SettingsError("--port and --listen-fd exclude each other")
    values.setdefault("served_name", Path(values["model"].partition(":")[2] or values["model"]).stem)
    return GatewaySettings(**values)


def _parent(environ: Mapping[str, str]) -> int:
    text = environ.get(names.ENV_PARENT, "0")
    try:
        return _integer(0, 1 << 22)(text)
    except ValueError as error:
        raise SettingsError(f"{names.ENV_PARENT} {text!r} is not allowed: {error}") from None


def seconds(text: str) -> float:
    """A duration such as 600, 10m, 1m30s or 500ms. Raises ValueError."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("a duration is wanted, such as 30s, 10m or 500ms")
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < total <= 7 * 86400:
        raise ValueError("it has to be longer than 0 and at most 7 days")
    return total


def _integer(least: int, most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most} is wanted")
        return int(text)

    return convert


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"one of {', '.join(allowed)} is wanted")
        return text

    return convert


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("a name is wanted")
    return text


def _kubernetes_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", text):
        raise ValueError("a name as Kubernetes allows it is wanted: at most 63 of a-z, 0-9 and -")
    return text


def _worker(text: str) -> tuple[str, str]:
    name, _, address = text.partition("=")
    host, _, port = address.rpartition(":")
    if not name or not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536:
        raise SettingsError(f"--worker {text!r} is not allowed: NAME=HOST:PORT is wanted")
    return name, address


def _quota(text: str) -> tuple[str, int]:
    tenant, _, tokens = text.rpartition("=")
    if not tenant or not re.fullmatch(r"\d{1,12}", tokens) or not int(tokens):
        raise SettingsError(f"--tenant-quota {text!r} is not allowed: TENANT=TOKENS is wanted, TOKENS at least 1")
    return tenant, int(tokens)


_ANY = 10**12
_FLAGS: Final[dict[str, tuple[Callable[[str], Any], str]]] = {
    "model": (_name, "path, hf:REPO@COMMIT or builtin:NAME; its tokenizer is used (required)"),
    "served-name": (_name, "the model's name for clients"),
    "max-length": (_integer(2, 10**8), "longest sequence, prompt and answer, in tokens (required)"),
    "host": (_name, "address to listen at (127.0.0.1)"),
    "port": (_integer(0, 65535), f"port to listen at; 0 takes a free one ({names.GATEWAY_PORT})"),
    "listen-fd": (_integer(3, 10**6), "number of an inherited listening socket to serve at, instead of --port"),
    "health-port": (
        _integer(0, 65535),
        "port of this process alone, for probes; 0 takes a free one; none unless given",
    ),
    "announce": (Path, "file to write the ports to, as JSON"),
    "workers-file": (Path, 'JSON list of {"worker", "address"}, watched for changes'),
    "workers-service": (
        _kubernetes_name,
        "headless Service whose EndpointSlices list the workers, watched",
    ),
    "namespace": (_kubernetes_name, "where that Service is"),
    "default-deadline": (seconds, "time for a request that names none (10m)"),
    "drain-deadline": (seconds, "time for running requests after SIGTERM (2m)"),
    "local-prefill-below-tokens": (_integer(0, _ANY), "decode workers compute so few tokens themselves (64)"),
    "when-prefill-unavailable": (_one_of(UNAVAILABLE), f"{', '.join(UNAVAILABLE)} (Local)"),
    "transfer-on-failure": (_one_of(ON_FAILURE), f"after a failed hand-off: {', '.join(ON_FAILURE)} (Retry)"),
    "max-queued-requests": (_integer(0, _ANY), "requests held in the gateway at most (2048)"),
    "max-queued-tokens": (_integer(0, _ANY), "their prompt tokens at most (4000000)"),
    "slow-client": (_one_of(SLOW_CLIENT), f"when a client reads too slowly: {', '.join(SLOW_CLIENT)} (Pause)"),
    "buffer-tokens": (_integer(1, _ANY), "tokens that a client may leave unread (1024)"),
    "worker-silence": (seconds, "a worker that sends nothing for so long is taken to hang (5s)"),
    "max-retries": (_integer(0, 1000), "faults in a row, without a token between them, that a request survives (8)"),
    "max-body-bytes": (_integer(1024, _ANY), "largest request body (8388608)"),
    "index-blocks": (_integer(0, _ANY), "blocks that the KV index holds at most (262144)"),
}
