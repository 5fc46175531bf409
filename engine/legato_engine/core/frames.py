"""Frames between server and core over their socket pair: length-prefixed msgpack, one per loop iteration and direction.

Frames for gateways pass through as bytes: the server forwards what the core encoded, and has checked what the core
decodes. The server imports this module, so it does not import torch.
"""

import struct
from typing import Final, Literal, get_args

import msgspec

from legato_engine.adapters.offer import AdapterOffer
from legato_engine.kvcache.tier_counts import TierCounts
from legato_engine.settings import WorkerSettings
from legato_protocol.model_files.adapter_list import AdapterList
from legato_protocol.wire.load import Load
from legato_protocol.wire.messages import Message, Value
from legato_protocol.wire.stream import HandoffReport, Hello

DECODE_BATCHES: Final = tuple(1 << power for power in range(11))  # upper bounds of all buckets except the last
FetchFailure = Literal["missing", "late", "lost", "corrupt", "no_room"]
FETCH_FAILURES: Final[tuple[FetchFailure, ...]] = get_args(FetchFailure)
_LENGTH = struct.Struct("<I")

PhaseName = Literal["queue", "kv_fetch", "prefill", "handoff", "decode"]

# ── server → core ───────────────────────────────────────────────────────────────────────────────────────────────────


class Start(Message, tag="start", frozen=True):
    """The first frame. `path` is the model's resolved path; `settings` has the token that peers are shown now."""

    settings: WorkerSettings
    path: str
    epoch: str
    adapters: AdapterList | None = None  # None: only the adapters in `settings`
    draft_path: str | None = None  # the draft model's


class FromGateway(Value, frozen=True):
    """A `stream.ToWorker` frame that the server has decoded and validated."""

    gateway: int  # the server's number for this connection; never used twice in its life
    data: bytes


class ProfileOrder(Value, frozen=True):
    """Asks for a Chrome trace of the next `steps` at `path`, if they are computed within `timeout` seconds."""

    path: str
    steps: int
    timeout: float


class Inbox(Message, tag="in", frozen=True):
    """Everything received since the last one, oldest first."""

    frames: tuple[FromGateway, ...] = ()
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    drain: bool | None = None  # None: unchanged
    order: int = 0  # number of this order to drain, or to serve again
    tokens: tuple[str, ...] = ()  # the service's tokens; the first is shown to peers; empty: unchanged
    adapters: AdapterList | None = None  # adapters to offer; None: unchanged
    profile: ProfileOrder | None = None


# ── core → server ───────────────────────────────────────────────────────────────────────────────────────────────────


class Loading(Message, tag="load", frozen=True):
    """Progress of the start: the current phase and the share of it that is done (0 … 1)."""

    phase: str
    share: float


class NotStarting(Message, tag="no", frozen=True):
    """The start failed, and another try would fail for the same reason."""

    reason: str


class Ready(Message, tag="ready", frozen=True):
    """The core has started and serves."""

    hello: Hello
    formats: str  # chosen number formats, and why
    vocab_size: int
    offer: AdapterOffer | None = None
    fallback: str = ""  # why something slower replaces kernels for this device
    transport_reason: str = ""  # why hand-offs do not use a transport preferred to the one in `hello`
    transport_fallback: bool = False  # the transport is worse than the settings asked for, or than the devices promise
    gpus: tuple[str, ...] = ()  # UUIDs of the GPUs that compute


class Beat(Message, tag="beat", frozen=True):
    """A heartbeat: the process lives, however long its step takes.

    `iteration` of the loop began `busy` seconds ago; 0 if the loop waits. Iteration 0 is the start, which last made
    progress `busy` seconds ago. The step should take `expected` seconds; 0: unknown.
    """

    iteration: int = 0
    busy: float = 0.0
    expected: float = 0.0


class ForGateway(Value, frozen=True):
    gateway: int
    data: bytes


class CoreTotals(Value, frozen=True):
    """Counts since this core's start."""

    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    received_handoffs: int = 0
    sent_handoffs: int = 0
    failed_handoffs: int = 0
    kv_fetches: int = 0  # fetches of cached blocks that brought some
    kv_fetched_blocks: int = 0
    kv_fetched_bytes: int = 0
    kv_fetch_seconds: float = 0.0
    kv_lent_blocks: int = 0  # sent to workers that fetched them
    failed_kv_fetches: dict[str, int] = msgspec.field(default_factory=dict)  # by reason
    preemptions: int = 0
    shared_prompt_tokens: int = 0
    decode_rows: int = 0
    decode_batches: tuple[int, ...] = (0,) * (len(DECODE_BATCHES) + 1)  # number of steps, by bucket of decoded rows
    tokens_by_tenant: dict[str, int] = msgspec.field(default_factory=dict)
    transfer: dict[str, int] = msgspec.field(default_factory=dict)  # `transfer.agent.Counts`
    drafted: int = 0
    accepted: int = 0
    drafting: float = 0.0  # seconds that a draft model computed
    tiers: dict[str, TierCounts] = msgspec.field(default_factory=dict)  # by name, as in `kv_events.TIERS`
    slice_wait: float = 0.0  # seconds that steps waited for time slices


class CoreStatus(Value, frozen=True):
    """State for `/state` and `/metrics`. `idle`: nothing runs, waits or is handed off, so a drained worker may stop."""

    load: Load
    totals: CoreTotals
    idle: bool
    kv_utilization: float = 1.0  # share of the used blocks' slots that hold KV
    mismatch: str = ""  # the fault that the integrity check of blocks reported when the core was last idle
    order: int = 0  # the last order to drain or to serve again that was carried out
    shares_cores: bool = False  # steps take time slices: workers have more threads than there are cores


class TracedPhase(Value, frozen=True):
    """A phase of a traced request in the core, between two readings of the machine's monotonic clock.

    `trace` is the request's traceparent; `error` is the code that it failed with.
    """

    trace: str
    name: PhaseName
    began: float
    ended: float
    details: dict[str, str | int] = msgspec.field(default_factory=dict)
    error: str = ""


class IterationReport(Message, tag="iteration", frozen=True):
    """The output of one iteration of the loop. `events` are encoded `kv_events`, in order."""

    frames: tuple[ForGateway, ...] = ()
    everyone: tuple[bytes, ...] = ()
    events: tuple[bytes, ...] = ()
    handoffs: tuple[HandoffReport, ...] = ()
    status: CoreStatus | None = None
    phases: tuple[TracedPhase, ...] = ()
    offer: AdapterOffer | None = None  # None: unchanged


class Profiled(Message, tag="profiled", frozen=True):
    """The last order for a profile has an outcome: its file is written, or there is a reason why not."""

    reason: str = ""


ToCore = Start | Inbox
FromCore = Loading | NotStarting | Ready | Beat | IterationReport | Profiled

_encoder = msgspec.msgpack.Encoder()
_to_core: "msgspec.msgpack.Decoder[ToCore]" = msgspec.msgpack.Decoder(ToCore)
_from_core: "msgspec.msgpack.Decoder[FromCore]" = msgspec.msgpack.Decoder(FromCore)


def encode(frame: ToCore | FromCore) -> bytes:
    """The encoded frame, preceded by its length."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


def decode_to_core(body: bytes) -> ToCore:
    return _to_core.decode(body)


def decode_from_core(body: bytes) -> FromCore:
    return _from_core.decode(body)


class Splitter:
    """Splits a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the bodies that `data` completes."""
        self._buffer += data
        bodies, at = [], 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return bodies
