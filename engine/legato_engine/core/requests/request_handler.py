"""Carries out frames from gateways: each becomes calls of the scheduler and of the hand-offs."""

from collections.abc import Collection, Sequence

from legato_engine.adapters.resident import ResidentAdapters
from legato_engine.core.frames import Inbox
from legato_engine.core.handoff.sides import HandoffSides
from legato_engine.core.reporting.outbox import Outbox, key_of
from legato_engine.core.requests.pending_requests import PendingRequest, PendingRequests
from legato_engine.core.requests.stall import Stall
from legato_engine.grammars import compilations
from legato_engine.grammars.compilations import Compilations
from legato_engine.scheduler.requests.limits import RequestRejected
from legato_engine.scheduler.requests.request import Request, RequestState
from legato_engine.scheduler.results import EndedSequences
from legato_engine.scheduler.scheduler import Scheduler
from legato_protocol.wire import stream
from legato_protocol.wire.stream import (
    Cancel,
    Decode,
    FailureCode,
    Generate,
    Handoff,
    Part,
    Pause,
    Prefill,
    Split,
    ToWorker,
)

_NO_LINK = "this worker was started without a transport and cannot hand off"
_NO_SLOT = "all adapter slots of this worker are used by requests that wait for other workers"
_ROOM_IN_USE = "room {} is used by another hand-off of this worker"


class RequestHandler:
    """Begins, cancels, pauses, splits and migrates requests; answers with `Failed` if that is impossible."""

    def __init__(
        self,
        scheduler: Scheduler,
        handoffs: HandoffSides | None,
        outbox: Outbox,
        grammars: Compilations,
        adapters: ResidentAdapters,
    ) -> None:
        """Without `handoffs`, this worker has no transport."""
        self.scheduler = scheduler
        self.handoffs = handoffs
        self.draining = False
        self.order = 0  # the last order to drain or to serve again
        # True if the load should be reported immediately: a gateway came, draining began or ended, blocks became free.
        self.news = False
        self._outbox = outbox
        self._grammars = grammars
        self.adapters = adapters
        self._pending = PendingRequests()
        self._stall = Stall()
        self._kept: frozenset[tuple[int, int]] = frozenset()  # rooms and attempts whose grants the agent keeps
        self._recheck = False  # some pending requests may be able to begin
        self._attempts: dict[int, dict[str, int]] = {}  # of each gateway's requests, by key

    @property
    def gateways(self) -> Collection[int]:
        """Connected gateways."""
        return self._attempts.keys()

    @property
    def pending(self) -> int:
        """Requests that wait for a grammar, an adapter or cached blocks of another worker."""
        return len(self._pending)

    @property
    def idle(self) -> bool:
        """True if nothing runs, waits or is handed off."""
        handed_off = self.handoffs is None or self.handoffs.agent.pending() == 0
        return not self._pending and self.scheduler.idle and handed_off

    def take_in(self, inbox: Inbox, now: float) -> None:
        for gateway in inbox.joined:
            self._attempts[gateway] = {}
            self.news = True
        for frame in inbox.frames:
            self._handle(frame.gateway, stream.decode_to_worker(frame.data), now)
        for gateway in inbox.left:
            self._pending.drop_gateway(gateway)
            self._recheck = True
            for key, attempt in self._attempts.pop(gateway, {}).items():
                self._end(self.scheduler.cancel(key, attempt, cut_off=True), "its gateway has disconnected")
        if inbox.drain is not None:
            self.draining, self.order, self.news = inbox.drain, inbox.order, True
            self._recheck = True

    def on_adapters_changed(self) -> None:
        """The offered adapters have changed, and perhaps those in memory."""
        self._recheck = self.news = True

    def expire(self, now: float) -> None:
        """Ends and reports requests whose deadline has passed."""
        for pending in self._pending.take_expired(now):
            why = f"its deadline passed while it waited for {pending.awaited}"
            self._fail_pending(pending, "deadline", why, retry=False)
        self._end_stalled(now)
        ended = self.scheduler.expire(now)
        for request in ended.requests:
            part: Part = "decode" if request.room is None else "prefill"
            self._fail(request, "deadline", "its deadline has passed", part, retry=False)
        for transfer in ended.incoming:
            if transfer.fetch:
                continue
            why = "its deadline passed while it waited for its KV"
            self._fail(transfer.request, "deadline", why, "transfer", retry=False)
        self._end(ended, "deadline")

    def _end_stalled(self, now: float) -> None:
        """Fails prefills that lack an adapter slot while workers wait for each other's slots: gateways retry them."""

        def lacks_room(pending: PendingRequest) -> bool:
            return isinstance(pending.frame, Prefill) and self.adapters.lacks_room(pending.frame.sequence.adapter)

        blockers = self.scheduler.waiting_for_peers() if any(map(lacks_room, self._pending)) else frozenset()
        if self._stall.lasts(blockers, now):
            for pending in self._pending.take(lacks_room):
                self._fail_pending(pending, "overloaded", _NO_SLOT, retry=True)

    def end_faulted(self, requests: Sequence[tuple[Request, str]]) -> None:
        """Ends requests for which no token could be sampled. Gateways retry them once on another worker, whose KV and
        memory are separate."""
        for request, fault in requests:
            part: Part = "decode" if request.room is None else "prefill"
            self._fail(request, "faulted", fault, part, retry=True)
        self._end(EndedSequences(tuple(request for request, _ in requests)), "its computation failed")

    def forget_finished(self) -> None:
        """Drops the keys of requests that have ended."""
        expected, requests = self._expected, self.scheduler.requests
        for gateway, attempts in self._attempts.items():
            live = {key: attempt for key, attempt in attempts.items() if key in expected or requests(key)}
            self._attempts[gateway] = live

    # ── frames ──

    def _handle(self, gateway: int, frame: ToWorker, now: float) -> None:
        match frame:
            case Generate() | Prefill() | Decode():
                self._begin(PendingRequest(gateway, frame, now))
            case Cancel():
                self._pending.drop(gateway, frame)
                self._recheck = True
                self._end(self.scheduler.cancel(key_of(gateway, frame.id), frame.attempt, frame.choices), "cancelled")
            case Split():
                self._split(gateway, frame)
            case Pause():
                self._pending.pause(gateway, frame)
                self.scheduler.pause(key_of(gateway, frame.id), frame.attempt, frame.on)
            case Handoff():
                self._migrate(gateway, frame)

    def begin_pending(self) -> None:
        """Begins requests whose grammar is compiled, adapter loaded and fetch over; keeps the grants of the others.

        Ends fetches whose requests have ended."""
        if self.handoffs is not None and self.handoffs.receivers.fetches.take_ended():
            self._recheck = True
        self._begin_ready()
        self.adapters.release()  # after that: an adapter that was just loaded is for requests that wait for it
        prefills = self._pending.prefills()
        if self.handoffs is not None and (prefills or self._kept):
            self.handoffs.agent.hold(prefills)
        self._kept = prefills
        if self.handoffs is not None and self.handoffs.receivers.fetches.rooms:
            self.handoffs.receivers.end_fetches(self._pending.fetches())

    def _begin_ready(self) -> None:
        compiled, loaded = self._grammars.take_done(), self.adapters.take_done()
        if not (compiled or loaded or (self._pending and (self._recheck or self.adapters.has_room))):
            return
        self._recheck = False
        self.adapters.begin_round()
        for pending in self._pending.take_all():
            self._begin(pending)
        self.adapters.end_round()

    def _begin(self, pending: PendingRequest) -> None:
        gateway, frame, now = pending.gateway, pending.frame, pending.arrival
        key = key_of(gateway, frame.id)
        room = None if isinstance(frame, Generate) else frame.room
        request = Request.from_sequence(key, frame.attempt, frame.sequence, now, room)
        part = part_of(frame)
        if self.draining:
            self._fail(request, "draining", "this worker drains and takes no new requests", part, retry=True)
            return
        if room is not None and self.handoffs is None:
            self._fail(request, "transfer", _NO_LINK, "transfer", retry=True)
            return
        if self._attempts.get(gateway, {}).get(key, -1) >= frame.attempt and self._holds(key):
            self._fail(request, "invalid", "this worker already has this attempt, or a later one", part, retry=False)
            return
        if room is not None and self._uses(room):
            self._fail(request, "invalid", _ROOM_IN_USE.format(room), part, retry=False)
            return
        if not self._prepare(pending, request, part):
            return
        try:
            self._submit(request, frame, now)
        except RequestRejected as refusal:
            self._fail(request, refusal.code, str(refusal), part, retry=refusal.retry)
            return
        self._attempts.setdefault(gateway, {})[key] = frame.attempt
        self._outbox.phases.on_arrived(request)
        if pending.paused:
            self.scheduler.pause(key, frame.attempt, True)

    def _prepare(self, pending: PendingRequest, request: Request, part: Part) -> bool:
        """Gives the request its grammar and adapter, and fetches cached blocks that it begins with.

        False if it has to wait for any of these, or has failed.
        """
        params, digest = request.params, request.adapter
        fetching = self._fetch(pending, request)
        grammar = self._grammars.ask(params) if params.grammar else None
        adapter = self.adapters.ask(digest) if digest else None
        awaited = _awaited(fetching, bool(params.grammar) and grammar is None, bool(digest) and adapter is None)
        if isinstance(grammar, str):
            self._fail(request, "invalid", f"its grammar: {grammar}", part, retry=False)
        elif isinstance(adapter, str):
            self._fail(request, "internal", adapter, part, retry=True)
        elif not awaited:
            request.grammar = compilations.position(grammar) if grammar is not None else None
            request.loaded_adapter = adapter
            return True
        elif len(self._pending) >= self.scheduler.limits.max_waiting:
            self._fail(request, "overloaded", f"{len(self._pending)} requests wait already", part, retry=True)
        else:
            pending.awaited = awaited
            self._pending.add(pending)
        return False

    def _fetch(self, pending: PendingRequest, request: Request) -> bool:
        """Begins the fetch that the gateway asked for, unless that was done before; True while it goes on."""
        source = None if isinstance(pending.frame, Decode) else pending.frame.fetch
        if source is None or self.handoffs is None:
            return False
        receivers, waiting = self.handoffs.receivers, len(self._pending)
        if not pending.fetched:
            pending.fetched = True
            if waiting < self.scheduler.limits.max_waiting and not self._uses(source.room):
                receivers.fetch(request, source, pending.arrival)
        return receivers.fetches.running(source.room)

    def _submit(self, request: Request, frame: Generate | Prefill | Decode, now: float) -> None:
        if isinstance(frame, Decode):
            assert self.handoffs is not None
            self.handoffs.receivers.reserve(request, frame.source, now)
            return
        self.scheduler.add(request, now)
        if isinstance(frame, Prefill):
            assert self.handoffs is not None
            self.handoffs.senders.prefill(request, frame.to)

    def _split(self, gateway: int, frame: Split) -> None:
        for request in self.scheduler.requests(key_of(gateway, frame.id)):
            if request.attempt == frame.attempt and len(request.choices) == 1 and request.choice in frame.names:
                key = key_of(gateway, frame.names[request.choice])
                self.scheduler.rename(request, key)
                self._attempts.setdefault(gateway, {})[key] = frame.attempt

    def _migrate(self, gateway: int, frame: Handoff) -> None:
        key = key_of(gateway, frame.id)
        running = [
            r for r in self.scheduler.requests(key) if r.state is RequestState.RUNNING and r.attempt < frame.attempt
        ]
        if self.handoffs is None:
            self._outbox.fail(key, frame.attempt, "transfer", _NO_LINK, "transfer", True)
        elif len(running) != 1 or len(running[0].choices) > 1 or running[0].sending or running[0].room is not None:
            why = "it cannot be migrated: it is not a single running sequence of this worker"
            self._outbox.fail(key, frame.attempt, "transfer", why, "transfer", True)
        elif self._uses(frame.room):
            self._outbox.fail(key, frame.attempt, "invalid", _ROOM_IN_USE.format(frame.room), "transfer", False)
        else:
            self.handoffs.senders.migrate(running[0], frame)

    # ── ends ──

    def _fail(self, request: Request, code: FailureCode, message: str, part: Part, *, retry: bool) -> None:
        self._outbox.fail(request.id, request.attempt, code, message, part, retry)

    def _fail_pending(self, pending: PendingRequest, code: FailureCode, message: str, *, retry: bool) -> None:
        self._recheck = True
        key, frame = key_of(pending.gateway, pending.frame.id), pending.frame
        self._outbox.fail(key, frame.attempt, code, message, part_of(frame), retry)

    def _end(self, ended: EndedSequences, reason: str) -> None:
        if ended.requests or ended.incoming:
            self.news = True
        if self.handoffs is not None and ended.requests:
            self.handoffs.senders.end(ended.requests, reason)
        if self.handoffs is not None and ended.incoming:
            self.handoffs.receivers.end(ended.incoming, reason)
        self._outbox.phases.end(transfer.request for transfer in ended.incoming)

    def _holds(self, key: str) -> bool:
        return bool(self.scheduler.requests(key)) or key in self._expected

    @property
    def _expected(self) -> frozenset[str]:
        """Keys of the requests whose sequences other workers hand off to this one."""
        return frozenset() if self.handoffs is None else self.handoffs.receivers.keys

    def _uses(self, room: int) -> bool:
        return self.handoffs is not None and self.handoffs.uses(room)


def _awaited(fetching: bool, compiling: bool, loading: bool) -> str:
    """Reasons for which a request has to wait, or "" if it can begin."""
    reasons = {"its grammar": compiling, "its adapter": loading, "cached blocks of another worker": fetching}
    return " and ".join(reason for reason, waits in reasons.items() if waits)


def part_of(frame: Generate | Prefill | Decode) -> Part:
    """The part of the request that this worker computes."""
    return "prefill" if isinstance(frame, Prefill) else "decode"
