"""State shared by gateways and core: connected gateways, the core's last status, and queued frames. Without I/O.

All calls are synchronous and come from the server's only thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from legato_engine.adapters.offer import AdapterOffer
from legato_engine.core.frames import (
    Beat,
    CoreStatus,
    FromGateway,
    Inbox,
    IterationReport,
    Loading,
    ProfileOrder,
    Ready,
)
from legato_engine.metrics import WorkerMetrics
from legato_engine.server.phase_spans import PhaseSpans
from legato_engine.server.send_queue import SendQueue
from legato_engine.server.step_traces import NoCore, ProfileSlot
from legato_engine.server.stored_hashes import StoredHashes
from legato_engine.validity import frame_fault
from legato_protocol.model_files.adapter_list import AdapterList
from legato_protocol.wire import kv_events, stream
from legato_protocol.wire.messages import BadFrame, UnknownKind
from legato_protocol.wire.stream import (
    Decode,
    Failed,
    Generate,
    Greeting,
    Handoff,
    HandoffReport,
    Lost,
    Part,
    Prefill,
    ToWorker,
)

RECENT_HANDOFFS = 256
_PARTS: dict[type, Part] = {Prefill: "prefill", Handoff: "transfer"}


@dataclass(slots=True)
class CoreView:
    """The latest reports of the serving core."""

    ready: Ready
    stored: dict[int, StoredHashes]  # by tier of KV
    status: CoreStatus | None = None
    offer: AdapterOffer | None = None  # adapters that the core offers from the last list
    handoffs: deque[HandoffReport] = field(default_factory=lambda: deque(maxlen=RECENT_HANDOFFS))

    @classmethod
    def of(cls, ready: Ready) -> "CoreView":
        """A core that has just started."""
        hello = ready.hello
        tiers = {tier: StoredHashes(hello.epoch, tier) for tier in (kv_events.ARENA, *hello.tiers)}
        return cls(ready, tiers, offer=ready.offer)

    @property
    def unreadable(self) -> str:
        """The reason why blocks of workers on this node take the transport instead of memory, or ""."""
        count = self.status.totals.transfer.get("unreadable_peers", 0) if self.status else 0
        return f"the memory of {count} workers of this node cannot be read" if count else ""

    @property
    def transport_reason(self) -> str:
        return "; ".join(filter(None, (self.ready.transport_reason, self.unreadable)))

    @property
    def transport_fallback(self) -> bool:
        return self.ready.transport_fallback or bool(self.unreadable)

    def snapshot(self) -> list[bytes]:
        """Encoded pages of all tiers."""
        return [page for stored in self.stored.values() for page in stored.snapshot()]


class Hub:
    """Forwards frames in both directions. `core` is None while none serves.

    `wake` is called when `take_inbox` has a frame.
    """

    def __init__(self, metrics: WorkerMetrics, wake: Callable[[], None], spans: PhaseSpans | None = None) -> None:
        self.phase = "starting"
        self.core: CoreView | None = None
        self.draining = False
        self.stopping = False  # the process was asked to exit
        self.metrics = metrics
        self._wake = wake
        self._spans = spans
        self._numbers = 0
        self._gateways: dict[int, SendQueue] = {}
        self._listeners: set[SendQueue] = set()
        self._frames: list[FromGateway] = []
        self._joined: list[int] = []
        self._left: list[int] = []
        self._drain_requested = False  # `draining` was not sent to the core yet
        self._order = 0  # number of the last order to drain or to serve again
        # The service's tokens; the first is shown to peers. Empty: only the token in the settings.
        self.tokens: tuple[str, ...] = ()
        self._new_tokens: tuple[str, ...] = ()  # not sent to the core yet
        self.adapters: AdapterList | None = None  # adapters to offer; None: there is no list
        self._new_adapters: AdapterList | None = None  # not sent to the core yet; its `Start` has the last one
        self.profile = ProfileSlot()

    # ── core ──

    def loading(self, frame: Loading) -> None:
        self.phase = f"{frame.phase} {frame.share:.0%}" if frame.share else frame.phase

    def core_ready(self, ready: Ready) -> None:
        """A core serves: greets every gateway and sends a snapshot to every listener."""
        self.core = CoreView.of(ready)
        self.phase = "ready"
        self._joined = list(self._gateways)
        self._drain_requested, self._new_tokens = self.draining, self.tokens
        hello = stream.encode(ready.hello)
        for queue in self._gateways.values():
            queue.put(hello)
        for queue in self._listeners:
            queue.put(*self.core.snapshot())
        self.metrics.on_core_started(ready.gpus)
        self._wake()

    def core_reported(self, report: IterationReport) -> None:
        core = self.core
        assert core is not None
        if report.offer is not None:  # before the load, which a gateway of release 0.1.0 forgets when it is greeted
            self._update_offer(core, report.offer)
        for frame in report.frames:
            if queue := self._gateways.get(frame.gateway):
                queue.put(frame.data)
        if report.everyone:
            for queue in self._gateways.values():
                queue.put(*report.everyone)
        if report.events:
            for data in report.events:
                event = kv_events.decode_event(data)
                core.stored[event.tier].apply(event)
            for queue in self._listeners:
                queue.put(*report.events)
        core.handoffs.extend(report.handoffs)
        if report.status:
            core.status = report.status
        if report.phases and self._spans is not None:
            self._spans.add(report.phases)

    def core_quiet(self, seconds: float, beat: Beat) -> None:
        """Repeats the last load to gateways: the core has reported nothing for `seconds`; `beat` is its last heartbeat.

        So gateways know that this server lives, and how long the core's step has taken.
        """
        status = self.core.status if self.core is not None else None
        if status is None:
            return
        ages = {"step_age": beat.busy, "step_expected": beat.expected, "core_silence": seconds}
        data = stream.encode(msgspec.structs.replace(status.load, **ages))
        for queue in self._gateways.values():
            queue.put(data)

    def core_lost(self, reason: str, silent: bool = False) -> None:
        """The core's process ended, or is about to be killed for its silence, and all its sequences with it."""
        self.phase = "restarting"
        self._frames, self._joined, self._left = [], [], []
        self.profile.end(f"the worker's compute process was lost: {reason}")
        if self.core is None:
            return
        lost = stream.encode(Lost(self.core.ready.hello.epoch, reason, silent))
        self.metrics.on_core_ended(self.core.status)
        self.core = None
        for queue in self._gateways.values():
            queue.put(lost)

    def take_inbox(self) -> Inbox | None:
        """Everything that the core was not sent yet; None if there is nothing to send, or no core."""
        news = self._frames or self._joined or self._left or self._drain_requested or self._new_tokens
        if self.core is None or not (news or self._new_adapters or self.profile.waiting):
            return None
        inbox = Inbox(
            tuple(self._frames),
            tuple(self._joined),
            tuple(self._left),
            self.draining if self._drain_requested else None,
            self._order,
            self._new_tokens,
            self._new_adapters,
            self.profile.take(),
        )
        self._frames, self._joined, self._left, self._drain_requested = [], [], [], False
        self._new_tokens, self._new_adapters = (), None
        return inbox

    def trust(self, tokens: tuple[str, ...]) -> None:
        """Sets the service's tokens for hand-offs; the first is shown to peers."""
        self.tokens = self._new_tokens = tokens
        self._wake()

    def offer(self, adapters: AdapterList) -> None:
        """Sets the adapters to offer."""
        self.adapters = self._new_adapters = adapters
        self._wake()

    def record(self, order: ProfileOrder) -> "asyncio.Future[str]":
        """Has the core record steps; see `ProfileSlot.begin`. Raises ProfileBusy and NoCore."""
        if self.core is None:
            raise NoCore(f"this worker is {self.phase}")
        outcome = self.profile.begin(order)
        self._wake()
        return outcome

    # ── gateways ──

    def join(self, queue: SendQueue) -> int:
        """A gateway has greeted. Returns its number."""
        self._numbers += 1
        self._gateways[self._numbers] = queue
        self._joined.append(self._numbers)
        if self.core is not None:
            queue.put(stream.encode(self.core.ready.hello))
            if self.core.status is not None:
                queue.put(stream.encode(self.core.status.load))
        self._wake()
        return self._numbers

    def leave(self, gateway: int) -> None:
        self._gateways.pop(gateway, None)
        self._left.append(gateway)
        self._wake()

    def frame(self, gateway: int, data: bytes) -> None:
        """Accepts a frame of a gateway; answers an invalid one.

        Raises UnknownKind for a frame to skip, and BadFrame for one that cannot be answered.
        """
        try:
            decoded = stream.decode_to_worker(data)
        except UnknownKind:
            raise
        except BadFrame as error:
            self._answer_malformed(gateway, data, str(error))
            return
        if isinstance(decoded, Greeting):
            raise BadFrame("a second greeting")
        if refusal := self._refusal(decoded):
            self._gateways[gateway].put(stream.encode(refusal))
            return
        if self.core is not None:
            self._frames.append(FromGateway(gateway, data))
            self._wake()

    def listen(self, queue: SendQueue) -> None:
        """Subscribes a gateway to KV events: a snapshot now, or once a core serves, then changes."""
        self._listeners.add(queue)
        self.send_snapshot(queue)

    def send_snapshot(self, queue: SendQueue) -> None:
        if self.core is not None:
            queue.put(*self.core.snapshot())

    def stop_listening(self, queue: SendQueue) -> None:
        self._listeners.discard(queue)

    @property
    def gateways(self) -> int:
        return len(self._gateways)

    # ── drain ──

    def drain(self) -> None:
        """Drains: the core accepts no new requests and notifies gateways immediately."""
        self._order_core(draining=True)

    def recall(self) -> None:
        """Serves again. Sequences that were handed off stay where they are."""
        self._order_core(draining=False)

    @property
    def drained(self) -> bool:
        """True if it drains and nothing runs any more. The core's reports from before the last order do not count."""
        if self.core is None:
            return self.draining
        status = self.core.status
        return status is not None and status.order == self._order and status.load.draining and status.idle

    # ── internals ──

    def _order_core(self, draining: bool) -> None:
        self.draining, self._drain_requested = draining, True
        self._order += 1
        self._wake()

    def _update_offer(self, core: CoreView, offer: AdapterOffer) -> None:
        """Greets gateways again if other adapters are offered."""
        core.offer, before = offer, core.ready.hello
        hello = msgspec.structs.replace(before, adapters=offer.adapters, former_adapters=offer.former)
        if hello != before:
            core.ready = msgspec.structs.replace(core.ready, hello=hello)
            for queue in self._gateways.values():
                queue.put(stream.encode(hello))

    def _refusal(self, frame: ToWorker) -> Failed | None:
        if not isinstance(frame, Generate | Prefill | Decode | Handoff):
            return None
        part = _PARTS.get(type(frame), "decode")
        if self.core is None:
            return Failed(frame.id, frame.attempt, "stale", f"this worker is {self.phase}", part, retry=True)
        if wrong := frame_fault(frame, self.core.ready.vocab_size):
            self.metrics.count_refusal("invalid")
            return Failed(frame.id, frame.attempt, "invalid", wrong, part, retry=False)
        return None

    def _answer_malformed(self, gateway: int, data: bytes, reason: str) -> None:
        named = _read_name(data)
        if named is None:
            raise BadFrame(reason)
        self.metrics.count_refusal("malformed")
        failed = Failed(named[0], named[1], "invalid", reason, "gateway", retry=False)
        self._gateways[gateway].put(stream.encode(failed))


def _read_name(data: bytes) -> tuple[str, int] | None:
    """The id and attempt of a frame that is otherwise invalid in this version, or None."""
    try:
        match msgspec.msgpack.decode(data):
            case [str(), str(id), int(attempt), *_] if 0 <= attempt < 1 << 63:
                return id, attempt
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):  # the last: a map's key is a map
        return None
    return None
