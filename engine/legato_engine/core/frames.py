"""What server and core say to each other over their socket pair: length-prefixed msgpack, one frame per turn and way.

Frames for gateways pass through as bytes: the core encodes what the server only forwards, and the server has checked
what the core decodes. No torch in here: the server reads it.
"""

import struct
from typing import Final, Literal

import msgspec

from legato_engine.adapters.offer import AdapterOffer
from legato_engine.settings import WorkerSettings
from legato_protocol.adapter_list import AdapterList
from legato_protocol.load import Load
from legato_protocol.messages import Message, Value
from legato_protocol.stream import HandoffReport, Hello

DECODE_BATCHES: Final = tuple(1 << power for power in range(11))  # bounds of buckets of steps, but the last
_LENGTH = struct.Struct("<I")

PhaseName = Literal["queue", "prefill", "handoff", "decode"]

# ── server → core ───────────────────────────────────────────────────────────────────────────────────────────────────


class Start(Message, tag="start", frozen=True):
    """First frame: what to be. `path` is the model's, resolved; the token in `settings` is the one to show now."""

    settings: WorkerSettings
    path: str
    epoch: str
    adapters: AdapterList | None = None  # None: those of `settings` are all there are


class FromGateway(Value, frozen=True):
    """A `stream.ToWorker` frame that decodes and makes sense."""

    gateway: int  # the server's number for this connection; never used twice in its life
    data: bytes


class Inbox(Message, tag="in", frozen=True):
    """All that came since the last one, oldest first."""

    frames: tuple[FromGateway, ...] = ()
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    drain: bool | None = None  # from now on; None: as before
    order: int = 0  # number of this order to drain, or to serve again
    tokens: tuple[str, ...] = ()  # the service's, first the one to show from now on; empty: as before
    adapters: AdapterList | None = None  # to offer from now on; None: as before


# ── core → server ───────────────────────────────────────────────────────────────────────────────────────────────────


class Loading(Message, tag="load", frozen=True):
    """How far the start has come: what is being done, and which share of it is (0 … 1)."""

    phase: str
    share: float


class NotStarting(Message, tag="no", frozen=True):
    """The start failed for a reason that another try would meet again."""

    reason: str


class Ready(Message, tag="ready", frozen=True):
    """It serves from here on."""

    hello: Hello
    formats: str  # which number formats were picked, and why
    vocab_size: int
    offer: AdapterOffer | None = None
    fallback: str = ""  # why kernels for this device are not used
    transport_reason: str = ""  # why hand-offs do not go by a transport that comes before the one in `hello`
    transport_fallback: bool = False  # whether that is less than was asked for, or than the devices here promise


class Beat(Message, tag="beat", frozen=True):
    """The process lives, however long its step takes: turn number `turn` began `busy` seconds ago; 0 between turns.
    Turn 0 is the start: it last came further `busy` seconds ago.
    The step should take `expected` seconds; 0: unknown."""

    turn: int = 0
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
    preemptions: int = 0
    shared_prompt_tokens: int = 0
    decode_rows: int = 0
    decode_batches: tuple[int, ...] = (0,) * (len(DECODE_BATCHES) + 1)  # number of steps, by bucket of decoded rows
    tokens_by_tenant: dict[str, int] = msgspec.field(default_factory=dict)
    transfer: dict[str, int] = msgspec.field(default_factory=dict)  # `transfer.agent.Counts`


class CoreStatus(Value, frozen=True):
    """For `/state` and `/metrics`. `idle`: nothing runs, waits or is handed off, so a drained worker may stop."""

    load: Load
    totals: CoreTotals
    idle: bool
    kv_utilization: float = 1.0  # share of the used blocks' slots that hold KV
    mismatch: str = ""  # what was wrong with the owners of blocks when it was idle last
    order: int = 0  # the last order to drain or to serve again that it has carried out


class TracedPhase(Value, frozen=True):
    """A part of a traced request's life in the core, between two readings of the machine's monotonic clock. `trace` is
    its traceparent; `error` the code that it failed with."""

    trace: str
    name: PhaseName
    began: float
    ended: float
    details: dict[str, str | int] = msgspec.field(default_factory=dict)
    error: str = ""


class Turn(Message, tag="turn", frozen=True):
    """What one turn of the loop has to tell. `events` are encoded `kv_events`, in order."""

    frames: tuple[ForGateway, ...] = ()
    everyone: tuple[bytes, ...] = ()
    events: tuple[bytes, ...] = ()
    handoffs: tuple[HandoffReport, ...] = ()
    status: CoreStatus | None = None
    phases: tuple[TracedPhase, ...] = ()
    offer: AdapterOffer | None = None  # where it is another one


ToCore = Start | Inbox
FromCore = Loading | NotStarting | Ready | Beat | Turn

_encoder = msgspec.msgpack.Encoder()
_to_core: "msgspec.msgpack.Decoder[ToCore]" = msgspec.msgpack.Decoder(ToCore)
_from_core: "msgspec.msgpack.Decoder[FromCore]" = msgspec.msgpack.Decoder(FromCore)


def encode(frame: ToCore | FromCore) -> bytes:
    """The frame with its length before it."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


def decode_to_core(body: bytes) -> ToCore:
    return _to_core.decode(body)


def decode_from_core(body: bytes) -> FromCore:
    return _from_core.decode(body)


class Splitter:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes."""
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
