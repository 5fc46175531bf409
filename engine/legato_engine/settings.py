"""What a worker is told at its start: flags and their meaning, read once into frozen `WorkerSettings`.

The one place of the engine that looks at the environment. A value that is not allowed raises SettingsError, whose text
names the flag and what is allowed.
"""

import math
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final

from legato_protocol import names
from legato_protocol.flags import SettingsError
from legato_protocol.stream import Role

ROLES = ("prefill", "decode", "unified")
DTYPES = ("Auto", "Float32", "BFloat16", "Float16")
NUMERICS = ("Fast", "Invariant")
DEVICES = ("cpu", "cuda")
TRANSPORTS = ("Auto", "TCP", "SharedMemory", "RDMA", "None")

_UNITS: Final = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}
_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Sizes in bytes or tokens, times in seconds. None lets the worker decide: the model's own limit, all cores."""

    role: Role
    name: str
    model: str
    host: str = "127.0.0.1"
    transfer_host: str | None = None
    health_port: int = names.WORKER_HEALTH_PORT
    control_port: int = names.WORKER_CONTROL_PORT
    announce: str | None = None
    block_size: int = 16
    kv_cache_memory: int = 512 * 2**20
    chunk_tokens: int = 512
    max_length: int | None = None
    max_batch: int = 64
    dtype: str = "Auto"
    numerics: str = "Fast"
    device: str = "cpu"
    threads: int | None = None
    transport: str = "Auto"
    transfer_ports: tuple[int, int] | None = None
    checksum: bool = True
    drain_deadline: float = 120.0
    lease: float = 10.0
    core_silence: float = 10.0
    step_limit: float = 120.0
    start_limit: float = 600.0
    pod_revision: str = ""
    token: str = field(default="", repr=False)
    parent: int = 0  # process id that this one must not outlive; 0: it may outlive all


def add_flags(parser: ArgumentParser) -> None:
    """Every setting as a flag. Values stay text here: `read` judges them."""
    for flag in _FLAGS:
        default = "" if flag.default is None else f" (default {flag.default})"
        parser.add_argument(
            flag.name, default=flag.default, required=flag.required, metavar=flag.metavar, help=flag.help + default
        )
    parser.add_argument("--no-checksum", action="store_true", help="do not verify blocks that were handed over")


def read(flags: Namespace, environ: Mapping[str, str]) -> WorkerSettings:
    """The settings in parsed flags and the environment. Raises SettingsError."""
    values: dict[str, Any] = {}
    for flag in _FLAGS:
        text = getattr(flags, flag.field)
        try:
            values[flag.field] = None if text is None else flag.parse(text)
        except ValueError as error:
            raise SettingsError(f"{flag.name} is {text!r}; {error}") from None
    values |= {"token": environ.get(names.ENV_TOKEN, ""), "parent": _parent(environ)}
    settings = WorkerSettings(**values, checksum=not flags.no_checksum)
    _check_together(settings)
    return settings


def _parent(environ: Mapping[str, str]) -> int:
    text = environ.get(names.ENV_PARENT, "0")
    try:
        return _whole(0, 1 << 22)(text)
    except ValueError as error:
        raise SettingsError(f"{names.ENV_PARENT} is {text!r}; {error}") from None


def _check_together(settings: WorkerSettings) -> None:
    if settings.numerics == "Invariant":
        raise SettingsError("--numerics is 'Invariant', which the engine does not compute yet; allowed is Fast")
    if settings.dtype == "Float16" and settings.device == "cpu":
        raise SettingsError("--dtype is 'Float16', which needs --device cuda; allowed on cpu: Auto, Float32, BFloat16")
    if not settings.token and not _is_loopback(settings.host):
        raise SettingsError(
            f"--host is {settings.host!r}, but {names.ENV_TOKEN} is not set: without a token the control port is "
            "open to everyone, so only a loopback address such as 127.0.0.1 is allowed"
        )
    transfer_host = settings.transfer_host or settings.host
    if not settings.token and settings.transport != "None" and not _is_loopback(transfer_host):
        raise SettingsError(
            f"--transfer-host is {transfer_host!r}, but {names.ENV_TOKEN} is not set: without a token hand-offs go "
            "over a loopback address such as 127.0.0.1 only, or by --transport None not at all"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ── what a value may be: each raises ValueError with what is allowed ────────────────────────────────────────────────


def size(text: str) -> int:
    """Bytes as Kubernetes writes them: `512Mi`, `2Gi`, `1073741824`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text)
    if not match or match[2] not in _UNITS or float(match[1]) <= 0:
        raise ValueError("allowed is a size above 0 such as 512Mi, 2Gi or 1073741824")
    return int(float(match[1]) * _UNITS[match[2]])


def duration(text: str) -> float:
    """Seconds in `90`, `1.5s`, `2m` or `1h30m`."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("allowed is a duration such as 90s, 2m or 1h30m")
    seconds = math.fsum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds <= 0:
        raise ValueError("allowed is a duration above 0")
    return seconds


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= most:
            raise ValueError(f"allowed is a whole number from {least} to {most}")
        return int(text)

    return parse


def port_range(text: str) -> tuple[int, int]:
    """First and last port of `7100-7163`."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    if not match or not 1 <= int(match[1]) < int(match[2]) <= 65535:
        raise ValueError("allowed is a range of at least two ports such as 7100-7163")
    return int(match[1]), int(match[2])


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"allowed: {', '.join(allowed)}")
        return text

    return parse


def _text(text: str) -> str:
    if not text or any(ord(letter) < 32 for letter in text):
        raise ValueError("allowed is a text that is not empty, without control characters")
    return text


def _block_size(text: str) -> int:
    value = _whole(1, 1024)(text)
    if value & (value - 1):
        raise ValueError("allowed is a power of two from 1 to 1024")
    return value


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    default: str | None = None
    required: bool = False

    @property
    def field(self) -> str:
        return self.name[2:].replace("-", "_")


_PORT = _whole(0, 65535)

_FLAGS: Final = (
    _Flag("--role", _one_of(*ROLES), "ROLE", "prefill, decode or unified", required=True),
    _Flag("--name", _text, "NAME", "this worker's name, unique in its service", required=True),
    _Flag("--model", _text, "MODEL", "GGUF file, Hugging Face folder, hf:REPO@COMMIT or builtin:NAME", required=True),
    _Flag("--host", _text, "ADDRESS", "address that probes and gateways reach", "127.0.0.1"),
    _Flag(
        "--transfer-host",
        _text,
        "ADDRESS",
        "address that hand-offs listen on and other workers reach; that of --host unless given",
    ),
    _Flag("--health-port", _PORT, "PORT", "probes and metrics; 0 takes a free one", str(names.WORKER_HEALTH_PORT)),
    _Flag("--control-port", _PORT, "PORT", "streams, state, drain; 0 takes a free one", str(names.WORKER_CONTROL_PORT)),
    _Flag("--announce", _text, "FILE", "write the ports taken into this file, as JSON"),
    _Flag("--block-size", _block_size, "TOKENS", "tokens in a block of KV cache", "16"),
    _Flag("--kv-cache-memory", size, "SIZE", "memory of the KV cache", "512Mi"),
    _Flag("--chunk-tokens", _whole(1, 1 << 20), "TOKENS", "prompt tokens computed in one step", "512"),
    _Flag("--max-length", _whole(2, 1 << 24), "TOKENS", "longest sequence; the model's limit unless given"),
    _Flag("--max-batch", _whole(1, 4096), "SEQUENCES", "sequences that run at once", "64"),
    _Flag("--dtype", _one_of(*DTYPES), "DTYPE", "number format: " + ", ".join(DTYPES), "Auto"),
    _Flag("--numerics", _one_of(*NUMERICS), "MODE", "Fast", "Fast"),
    _Flag("--device", _one_of(*DEVICES), "DEVICE", "cpu or cuda", "cpu"),
    _Flag("--threads", _whole(1, 1024), "COUNT", "compute threads; as many as cores unless given"),
    _Flag("--transport", _one_of(*TRANSPORTS), "NAME", "what carries hand-offs: " + ", ".join(TRANSPORTS), "Auto"),
    _Flag("--transfer-ports", port_range, "LOW-HIGH", "ports that hand-offs listen on; any free ones unless given"),
    _Flag("--drain-deadline", duration, "TIME", "how long a worker that was told to stop may go on", "2m"),
    _Flag("--lease", duration, "TIME", "silence of a peer that ends a hand-off", "10s"),
    _Flag("--core-silence", duration, "TIME", "silence after which the compute process is replaced", "10s"),
    _Flag("--step-limit", duration, "TIME", "a step that takes longer is stuck: the compute process is replaced", "2m"),
    _Flag("--start-limit", duration, "TIME", "a start that comes no further for so long is stuck, likewise", "10m"),
    _Flag("--pod-revision", str, "HASH", "hash of the pod template", ""),
)
