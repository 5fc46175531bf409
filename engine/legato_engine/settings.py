"""The settings of a worker: flags and environment, read once into frozen `WorkerSettings`.

The only place of the engine that reads the environment. Does not import torch, so that the command line stays fast.
"""

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from legato_engine import capacity
from legato_protocol import names
from legato_protocol.model_files.degrees import DEGREES
from legato_protocol.settings import flags, sizes, values
from legato_protocol.settings.flags import Flag, SettingsError, ValueKind
from legato_protocol.wire.stream import Role
from legato_telemetry import switch

ROLES = ("prefill", "decode", "unified")
DTYPES = ("Auto", "Float32", "BFloat16", "Float16")
QUANTIZATIONS = ("None", "FP8", "Int8")
KV_DTYPES = ("Auto", "Float32", "BFloat16", "FP8")
NUMERICS = ("Fast",)  # Invariant is not computed yet
DEVICES = ("cpu", "cuda")
BLOCK_SIZES: Final = {"cpu": 16, "cuda": 64}  # default tokens by device; fastest for attention on an H100
# Default by device. CPUs gain nothing from longer chunks. An H100 computed 8,192 tokens at 593 TFLOP/s in one chunk,
# and at 357 in chunks of 512: the host launched their kernels too slowly. Much longer chunks would delay hand-offs.
CHUNK_TOKENS: Final = {"cpu": 256, "cuda": 2048}
ON_KERNEL_FAILURE = ("Auto", "Stop", "Torch")
RUNNERS = ("model", "paced")
OUTPUT_RESERVATIONS = ("Expected", "Maximum")
TLS_MODES = ("Permissive", "Strict")
SPECULATIONS = ("None", "PromptLookup", "Draft")
MOST_DRAFTS = 7  # of a sequence in one step: attention on a GPU decodes rows of up to 8 tokens
TRANSPORTS = ("Auto", "TCP", "SharedMemory", "RDMA", "None")
NODE_MEMORY = ("Auto", "On", "Off")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Sizes are in bytes or tokens, times in seconds. None: the worker decides (the model's limit, all cores)."""

    role: Role
    name: str
    model: str
    host: str = "127.0.0.1"
    transfer_host: str | None = None
    health_port: int = names.WORKER_HEALTH_PORT
    control_port: int = names.WORKER_CONTROL_PORT
    control_tls_port: int = names.CONTROL_TLS_PORT  # used if there is a certificate
    announce: str | None = None
    block_size: int | None = None  # None: BLOCK_SIZES
    kv_cache_memory: int | None = 512 * 2**20  # None: Auto
    host_kv_memory: int = 0  # for blocks that the KV cache evicts
    disk_kv_path: str | None = None  # folder for blocks that this memory evicts, which survive the worker
    disk_kv_size: int | None = None
    memory_share: int | None = None  # None: no other program uses the same memory
    chunk_tokens: int | None = None  # None: CHUNK_TOKENS
    slo_tpot: float = 0.1
    output_reservation: str = "Expected"
    max_length: int | None = None
    max_batch: int | None = None  # None: as many as memory holds
    dtype: str = "Auto"
    speculation: str = "None"
    speculation_tokens: int = 4
    speculation_model: str | None = None  # the draft model
    quantization: str = "None"
    kv_cache_dtype: str = "Auto"
    numerics: str = "Fast"
    device: str = "cpu"
    on_kernel_failure: str = "Auto"
    runner: str = "model"
    profile: str | None = None
    adapters: tuple[tuple[str, str], ...] = ()  # name, folder
    adapters_file: str | None = None  # file with the adapters instead, followed for changes
    adapters_in_memory: int = 8
    max_adapter_rank: int = 64
    tensor: int = 1  # ranks that each layer is sharded over
    threads: int | None = None  # of each rank
    time_slices: str | None = None  # folder shared with other workers on the same cores
    transport: str = "Auto"
    transport_required: bool = False
    transfer_ports: tuple[int, int] | None = None
    node_memory: str = "Auto"
    checksum: bool = True
    drain_deadline: float = 120.0
    lease: float = 15.0
    core_silence: float = 15.0
    step_limit: float = 120.0
    start_limit: float = 600.0
    pod_revision: str = ""
    nvtx: bool = False  # opens ranges of steps and their parts, for NVIDIA's profilers
    traces: bool = False  # sent to the address in OpenTelemetry's standard variables
    token_folder: str | None = None  # folder with the service's tokens, followed for changes; None: only `token`
    internal_tls_folder: str | None = None  # folder with certificate, key and authority, followed for changes
    internal_tls_name: str = ""  # name in other workers' certificates
    internal_tls_mode: str = "Permissive"
    token: str = field(default="", repr=False)
    parent: int = 0  # id of a process that this one must not outlive; 0: none

    def length_limit(self, most: int) -> int | None:
        """The maximum length of a sequence in tokens; None: as many as memory holds.

        Raises SettingsError if it exceeds `most`, the model's limit.
        """
        if self.max_length is not None and self.max_length > most:
            raise SettingsError(f"--max-length is {self.max_length}; this model allows at most {most}")
        return self.max_length

    @property
    def tokens_per_block(self) -> int:
        return self.block_size or BLOCK_SIZES[self.device]

    @property
    def tokens_per_chunk(self) -> int:
        return self.chunk_tokens or CHUNK_TOKENS[self.device]

    @property
    def most_drafts(self) -> int:
        """Tokens that are drafted of a sequence for one step at most."""
        return 0 if self.speculation == "None" else self.speculation_tokens

    @property
    def shares_memory(self) -> bool:
        """True if workers of the same node should read each other's KV from memory. Checksums are required for that."""
        on = self.node_memory == "On" or (self.node_memory == "Auto" and self.transport == "Auto")
        return on and self.transport != "None" and self.checksum

    @property
    def plain_control(self) -> bool:
        """True if there is a control port without TLS, and hand-offs with workers without TLS are allowed."""
        return self.internal_tls_mode != "Strict"


_BLOCK_SIZES: Final = tuple(str(1 << power) for power in range(11))


def _block_size(text: str) -> int | None:
    if text not in (sizes.AUTO, *_BLOCK_SIZES):
        raise values.invalid("number", text, f"a power of two from 1 to 1024, or {sizes.AUTO}")
    return None if text == sizes.AUTO else int(text)


def _degree(text: str) -> int:
    return int(values.one_of(text, tuple(map(str, DEGREES)), "number"))


def _whole_or_auto(text: str, least: int, most: int) -> int | None:
    return None if text == sizes.AUTO else values.whole(text, least, most, also=f", or {sizes.AUTO}")


def _text_or_auto(number: int | None) -> str:
    return sizes.AUTO if number is None else str(number)


def _adapter(text: str) -> tuple[str, str]:
    name, _, source = text.partition("=")
    try:
        return values.printable(name, "name"), values.printable(source, "source")
    except ValueError:
        raise values.invalid("adapter", text, "NAME=SOURCE, such as sql=/adapters/sql") from None


_AUTO_OR_SIZE: Final = ValueKind("SIZE", sizes.parse_or_auto, sizes.text_or_auto)


def _kv_folder(text: str) -> str:
    folder = Path(values.printable(text, "folder"))
    if ".." in folder.parts or str(folder) == folder.anchor:
        raise values.invalid("folder", text, "any but /, without ..")
    return text


_FLAGS: Final = (
    Flag("--role", flags.one_of("ROLE", ROLES), "prefill, decode or unified"),
    Flag("--name", flags.text("NAME"), "this worker's name, unique in its service"),
    Flag("--model", flags.text("MODEL"), "GGUF file, Hugging Face folder, hf:REPO[:FILE]@COMMIT or builtin:NAME"),
    Flag("--host", flags.HOST, "address for probes and gateways; :: is every address of both IP families"),
    Flag("--transfer-host", flags.HOST, "address for hand-offs, as other workers reach it; --host if not given"),
    Flag("--health-port", flags.PORT_OR_FREE, "port of probes and metrics; 0 takes a free one"),
    Flag("--control-port", flags.PORT_OR_FREE, "port of streams, state and drain; 0 takes a free one"),
    Flag("--control-tls-port", flags.PORT_OR_FREE, "the same over TLS; only with --internal-tls-folder"),
    Flag("--announce", flags.text("FILE"), "write the ports in use to this file, as JSON"),
    Flag(
        "--block-size",
        ValueKind("TOKENS", _block_size, _text_or_auto),
        f"tokens in a block of KV cache; Auto: {BLOCK_SIZES['cpu']}, or {BLOCK_SIZES['cuda']} with --device cuda",
    ),
    Flag(
        "--kv-cache-memory",
        _AUTO_OR_SIZE,
        "memory of the KV cache; Auto: all memory that weights and workspace leave free",
    ),
    Flag(
        "--host-kv-memory",
        ValueKind("SIZE", sizes.parse, sizes.text),
        "host memory for blocks that the KV cache evicts; none if not given",
    ),
    Flag(
        "--disk-kv-path",
        ValueKind("FOLDER", _kv_folder),
        "folder for KV blocks in files, which a restarted worker finds again",
    ),
    Flag("--disk-kv-size", ValueKind("SIZE", sizes.parse, sizes.text), "size of this worker's files"),
    Flag(
        "--memory-share",
        flags.whole("WORKERS", 1, 1024),
        "with Auto, number of workers that share this machine's memory; without a GPU, the KV cache then takes at most "
        "a quarter of a share, to leave memory for other programs",
    ),
    Flag(
        "--chunk-tokens",
        ValueKind("TOKENS", lambda text: _whole_or_auto(text, 1, 1 << 20), _text_or_auto),
        f"most prompt tokens computed in one step; Auto: {CHUNK_TOKENS['cpu']}, or {CHUNK_TOKENS['cuda']} with "
        "--device cuda",
    ),
    Flag("--slo-tpot", flags.DURATION, "time per output token; prompts get shorter chunks while sequences decode"),
    Flag(
        "--output-reservation",
        flags.one_of("OUTPUT", OUTPUT_RESERVATIONS),
        "output that running sequences get KV cache for before another one starts: Expected or Maximum",
    ),
    Flag(
        "--max-length",
        ValueKind("TOKENS", lambda text: _whole_or_auto(text, 2, 1 << 24), _text_or_auto),
        "longest sequence; Auto: as long as the model declares and the KV cache holds",
    ),
    Flag(
        "--max-batch",
        ValueKind("SEQUENCES", lambda text: _whole_or_auto(text, 1, 4096), _text_or_auto),
        "maximum number of sequences that run at the same time; Auto: as many as the KV cache holds at "
        f"{capacity.EXPECTED_TOKENS} tokens each, {capacity.FEWEST} to {capacity.MOST}",
    ),
    Flag(
        "--speculation",
        flags.one_of("METHOD", SPECULATIONS),
        "method that drafts tokens, which steps then verify: " + ", ".join(SPECULATIONS),
    ),
    Flag("--speculation-tokens", flags.whole("COUNT", 1, MOST_DRAFTS), "most tokens drafted of a sequence for a step"),
    Flag(
        "--speculation-model",
        flags.text("MODEL"),
        "with --speculation Draft, a small model with the same tokenizer that drafts, as in --model",
    ),
    Flag("--dtype", flags.one_of("DTYPE", DTYPES), "number format: " + ", ".join(DTYPES)),
    Flag("--quantization", flags.one_of("FORMAT", QUANTIZATIONS), "format that weights are rounded to while loading"),
    Flag("--kv-cache-dtype", flags.one_of("DTYPE", KV_DTYPES), "number format of KV: " + ", ".join(KV_DTYPES)),
    Flag("--numerics", flags.one_of("MODE", NUMERICS), "how logits are computed: " + ", ".join(NUMERICS)),
    Flag("--device", flags.one_of("DEVICE", DEVICES), "cpu or cuda"),
    Flag(
        "--on-kernel-failure",
        flags.one_of("ACTION", ON_KERNEL_FAILURE),
        "without compiled kernels: Stop, or compute with Torch's own operators, which are slower; Auto: Stop on a GPU, "
        "and Torch on a CPU, whose kernels do not support all sizes of models",
    ),
    Flag(
        "--runner",
        flags.one_of("RUNNER", RUNNERS),
        "model computes; paced computes nothing and takes the time that --profile says, for capacity tests",
    ),
    Flag("--profile", flags.text("PROFILE"), "for --runner paced: a JSON file, or the name of a shipped profile"),
    Flag(
        "--adapter",
        ValueKind("NAME=SOURCE", _adapter),
        "a LoRA adapter of the model: its name, and a folder as PEFT saves it",
        field="adapters",
        repeated=True,
    ),
    Flag("--adapters-file", flags.text("FILE"), "JSON list of adapters to offer, read again when it changes"),
    Flag("--adapters-in-memory", flags.whole("COUNT", 1, 1024), "most adapters in memory; others are loaded as needed"),
    Flag("--max-adapter-rank", flags.whole("RANK", 1, 1024), "an adapter of a higher rank is not taken"),
    Flag(
        "--tensor",
        ValueKind("RANKS", _degree),
        "ranks that each layer is sharded over: one process each, on a GPU of its own with --device cuda; "
        + ", ".join(map(str, DEGREES)),
    ),
    Flag(
        "--threads",
        flags.whole("COUNT", 1, 1024),
        "compute threads of each rank; if not given, all cores divided among the ranks",
    ),
    Flag(
        "--time-slices",
        flags.text("FOLDER"),
        "folder that workers on the same cores share: with more threads than cores, their steps take time slices",
    ),
    Flag("--transport", flags.one_of("TRANSPORT", TRANSPORTS), "transport of hand-offs: " + ", ".join(TRANSPORTS)),
    Flag(
        "--node-memory",
        flags.one_of("WHEN", NODE_MEMORY),
        "workers of one node read KV from each other's memory; Auto: with --transport Auto",
    ),
    Flag("--transfer-ports", flags.PORT_RANGE, "ports for hand-offs; any free ones if not given"),
    Flag("--drain-deadline", flags.DURATION, "time to finish or hand off sequences after SIGTERM"),
    Flag("--lease", flags.DURATION, "end a hand-off when the other worker is silent for this long"),
    Flag("--core-silence", flags.DURATION, "replace the compute process when it is silent for this long"),
    Flag("--step-limit", flags.DURATION, "replace the compute process when one step takes longer than this"),
    Flag("--start-limit", flags.DURATION, "replace the compute process when its start makes no progress for this long"),
    Flag("--pod-revision", flags.text("HASH"), "hash of the pod template"),
    Flag("--token-folder", flags.text("FOLDER"), "folder with the service's tokens, read again when they change"),
    Flag(
        "--internal-tls-folder",
        flags.text("FOLDER"),
        "folder with tls.crt, tls.key and ca.crt of the service's processes, read again when they change",
    ),
    Flag("--internal-tls-name", flags.text("NAME"), "name that certificates of workers must be for"),
    Flag(
        "--internal-tls-mode",
        flags.one_of("MODE", TLS_MODES),
        "Permissive keeps the control port without TLS, and hand-offs with workers that have none; Strict has neither",
    ),
)


def add_flags(parser: ArgumentParser) -> None:
    """Adds a flag for every setting. argparse refuses invalid values; `read` checks combinations."""
    flags.add(parser, _FLAGS, WorkerSettings)
    parser.add_argument(
        "--transport-required",
        action="store_true",
        default=SUPPRESS,
        help="with --transport Auto or RDMA: end where RDMA cannot be used, instead of falling back to TCP",
    )
    parser.add_argument(
        "--no-checksum",
        dest="checksum",
        action="store_false",
        default=SUPPRESS,
        help="do not verify blocks that were handed off",
    )


def read(given: Namespace, environ: Mapping[str, str]) -> WorkerSettings:
    """Returns the settings from parsed flags and the environment. Raises SettingsError."""
    settings = WorkerSettings(
        **flags.given(given, WorkerSettings),
        token=environ.get(names.ENV_TOKEN, ""),
        parent=flags.parent(environ),
        nvtx=_is_on(environ, names.ENV_NVTX),
        traces=switch.is_on(environ),
    )
    _check_together(settings)
    return settings


def _is_on(environ: Mapping[str, str], name: str) -> bool:
    """True for 1; False for 0 or an unset variable. Raises SettingsError."""
    value = environ.get(name) or "0"
    if value not in ("0", "1"):
        raise SettingsError(f"{name}: not a valid value: {value} (0 or 1)")
    return value == "1"


def _check_together(settings: WorkerSettings) -> None:
    if settings.dtype == "Float16" and settings.device == "cpu":
        raise SettingsError("--dtype: Float16 needs --device cuda (on cpu: Auto, Float32 or BFloat16)")
    named = [name for name, _ in settings.adapters]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise SettingsError(f"--adapter: {', '.join(twice)} is given more than once")
    if settings.adapters and settings.adapters_file:
        raise SettingsError("--adapter and --adapters-file cannot be given together")
    if (settings.disk_kv_path is None) != (settings.disk_kv_size is None):
        raise SettingsError("--disk-kv-path and --disk-kv-size: only allowed together")
    if settings.disk_kv_path is not None and not settings.host_kv_memory:
        raise SettingsError("--disk-kv-path: needs --host-kv-memory, through which blocks are read and written")
    if (settings.adapters or settings.adapters_file) and settings.runner == "paced":
        flag = "--adapter" if settings.adapters else "--adapters-file"
        raise SettingsError(f"{flag}: not allowed with --runner paced, which computes nothing")
    if settings.runner == "paced" and settings.profile is None:
        raise SettingsError("--profile: required with --runner paced")
    if settings.runner != "paced" and settings.profile is not None:
        raise SettingsError("--profile: only allowed with --runner paced")
    if settings.node_memory == "On" and not settings.shares_memory:
        raise SettingsError("--node-memory: On is not allowed with --no-checksum or --transport None")
    _check_speculation(settings)
    if settings.internal_tls_folder is None and not settings.plain_control:
        raise SettingsError("--internal-tls-mode: Strict needs --internal-tls-folder")
    if (settings.internal_tls_folder is None) != (settings.internal_tls_name == ""):
        raise SettingsError("--internal-tls-folder and --internal-tls-name: only allowed together")
    if settings.token or settings.token_folder:
        return
    if not values.is_loopback(settings.host):
        raise SettingsError(
            f"--host: {settings.host} is not a loopback address, and {names.ENV_TOKEN} is not set: the control port "
            f"would be open to everyone (set {names.ENV_TOKEN}, give --token-folder, or listen on 127.0.0.1)"
        )
    transfer_host = settings.transfer_host or settings.host
    if settings.transport != "None" and not values.is_loopback(transfer_host):
        raise SettingsError(
            f"--transfer-host: {transfer_host} is not a loopback address, and {names.ENV_TOKEN} is not set: hand-offs "
            f"would be open to everyone (set {names.ENV_TOKEN}, give --token-folder, listen on 127.0.0.1, or use "
            "--transport None)"
        )


def _check_speculation(settings: WorkerSettings) -> None:
    drafts = settings.speculation == "Draft"
    if drafts and settings.runner == "paced":
        raise SettingsError("--speculation: Draft is not allowed with --runner paced, which computes nothing")
    if drafts and settings.speculation_model is None:
        raise SettingsError("--speculation-model: required with --speculation Draft")
    if not drafts and settings.speculation_model is not None:
        raise SettingsError("--speculation-model: only allowed with --speculation Draft")
