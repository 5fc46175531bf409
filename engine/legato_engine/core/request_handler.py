"""What gateways ask of the core: each frame becomes calls of the scheduler and of the hand-offs."""

from collections.abc import Collection, Sequence

from legato_engine.adapters.resident import ResidentAdapters
from legato_engine.core.frames import Inbox
from legato_engine.core.held_requests import HeldRequest, HeldRequests
from legato_engine.core.outbox import Outbox, key_of
from legato_engine.core.receivers import HandoffReceivers
from legato_engine.core.senders import HandoffSenders
from legato_engine.core.stall import Stall
from legato_engine.grammars import compilations
from legato_engine.grammars.compilations import Compilations
from legato_engine.scheduler.limits import RequestRejected
from legato_engine.scheduler.request import Request, RequestState
from legato_engine.scheduler.results import Ended
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.transfer.agent import TransferAgent
from legato_protocol import stream
from legato_protocol.stream import Cancel, Decode, FailureCode, Generate, Handoff, Part, Pause, Prefill, Split, ToWorker

_NO_LINK = "this worker was started without a transport: it hands nothing over"
_NO_PLACE = "all places of adapters here are those of requests that wait for other workers"
_ROOM_IN_USE = "room {} is that of another hand-off here"


class RequestHandler:
    """Takes frames in; answers refusals."""

    def __init__(
        self,
        scheduler: Scheduler,
        agent: TransferAgent | None,
        outbox: Outbox,
        senders: HandoffSenders | None,
        receivers: HandoffReceivers | None,
        grammars: Compilations,
        adapters: ResidentAdapters,
    ) -> None:
        self.scheduler = scheduler
        self.agent = agent
        self.senders = senders
        self.receivers = receivers
        self.draining = False
        self.order = 0  # the last one to drain or to serve again
        self.news = (
            False  # gateways should not wait for it: a first or last one came, draining began or ended, blocks are free
        )
        self._outbox = outbox
        self._grammars = grammars
        self.adapters = adapters
        self._held = HeldRequests()
        self._stall = Stall()
        self._kept: frozenset[tuple[int, int]] = frozenset()  # rooms and attempts that the agent keeps for held ones
        self._asks_again = False  # of those that are held, some may begin, or need not be waited for any more
        self._attempts: dict[int, dict[str, int]] = {}  # of each gateway's requests, by key

    @property
    def gateways(self) -> Collection[int]:
        """The connections there are."""
        return self._attempts.keys()

    @property
    def held(self) -> int:
        """Requests that wait for a grammar or an adapter."""
        return len(self._held)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is handed off."""
        return not self._held and self.scheduler.idle and (self.agent is None or self.agent.pending() == 0)

    def take_in(self, inbox: Inbox, now: float) -> None:
        for gateway in inbox.joined:
            self._attempts[gateway] = {}
            self.news = True
        for frame in inbox.frames:
            self._act(frame.gateway, stream.decode_to_worker(frame.data), now)
        for gateway in inbox.left:
            self._held.drop_gateway(gateway)
            self._asks_again = True
            for key, attempt in self._attempts.pop(gateway, {}).items():
                self._end(self.scheduler.cancel(key, attempt, cut_off=True), "its gateway is gone")
        if inbox.drain is not None:
            self.draining, self.order, self.news = inbox.drain, inbox.order, True
            self._asks_again = True

    def adapters_changed(self) -> None:
        """Others are offered: those in memory may be, too."""
        self._asks_again = self.news = True

    def expire(self, now: float) -> None:
        """End what is past its deadline, and say so."""
        for held in self._held.take_expired(now):
            what = "its deadline has passed while its adapter was awaited"
            self._fail_held(held, "deadline", what, retry=False)
        self._end_stalled(now)
        ended = self.scheduler.expire(now)
        for request in ended.requests:
            part: Part = "decode" if request.room is None else "prefill"
            self._fail(request, "deadline", "its deadline has passed", part, retry=False)
        for transfer in ended.incoming:
            what = "its deadline has passed while its KV was awaited"
            self._fail(transfer.request, "deadline", what, "transfer", retry=False)
        self._end(ended, "deadline")

    def _end_stalled(self, now: float) -> None:
        """Prefills whose workers wait for each other's places go elsewhere, or behind those that have a place."""

        def lacks_room(held: HeldRequest) -> bool:
            return isinstance(held.frame, Prefill) and self.adapters.lacks_room(held.frame.sequence.adapter)

        in_the_way = self.scheduler.waiting_for_peers() if any(map(lacks_room, self._held)) else frozenset()
        if self._stall.lasts(in_the_way, now):
            for held in self._held.take(lacks_room):
                self._fail_held(held, "overloaded", _NO_PLACE, retry=True)

    def end_faulted(self, requests: Sequence[tuple[Request, str]]) -> None:
        """Nothing could be sampled for these. Another worker may do better, whose KV and memory are its own; a gateway
        sees whether it does."""
        for request, fault in requests:
            part: Part = "decode" if request.room is None else "prefill"
            self._fail(request, "faulted", fault, part, retry=True)
        self._end(Ended(tuple(request for request, _ in requests)), "its computation failed")

    def forget_finished(self) -> None:
        """Keep no names of requests that are over."""
        for gateway, attempts in self._attempts.items():
            self._attempts[gateway] = {key: attempt for key, attempt in attempts.items() if self._holds(key)}

    # ── frames ──

    def _act(self, gateway: int, frame: ToWorker, now: float) -> None:
        match frame:
            case Generate() | Prefill() | Decode():
                self._begin(HeldRequest(gateway, frame, now))
            case Cancel():
                self._held.drop(gateway, frame)
                self._asks_again = True
                self._end(self.scheduler.cancel(key_of(gateway, frame.id), frame.attempt, frame.choices), "cancelled")
            case Split():
                self._split(gateway, frame)
            case Pause():
                self._held.pause(gateway, frame)
                self.scheduler.pause(key_of(gateway, frame.id), frame.attempt, frame.on)
            case Handoff():
                self._migrate(gateway, frame)

    def begin_held(self) -> None:
        """Begin what waited for a grammar that is compiled now, or an adapter that is loaded or has room; grants for
        what goes on waiting are kept."""
        self._begin_round()
        self.adapters.release()  # not before: one that was loaded now is for who waits
        prefills = self._held.prefills()
        if self.agent is not None and (prefills or self._kept):
            self.agent.hold(prefills)
        self._kept = prefills

    def _begin_round(self) -> None:
        compiled, loaded = self._grammars.take_done(), self.adapters.take_done()
        if not (compiled or loaded or (self._held and (self._asks_again or self.adapters.has_room))):
            return
        self._asks_again = False
        self.adapters.begin_round()
        for held in self._held.take_all():
            self._begin(held)
        self.adapters.end_round()

    def _begin(self, held: HeldRequest) -> None:
        gateway, frame, now = held.gateway, held.frame, held.arrival
        key = key_of(gateway, frame.id)
        room = None if isinstance(frame, Generate) else frame.room
        request = Request.of(key, frame.attempt, frame.sequence, now, room)
        part = part_of(frame)
        if self.draining:
            self._fail(request, "draining", "this worker takes nothing new", part, retry=True)
            return
        if room is not None and self.agent is None:
            self._fail(request, "transfer", _NO_LINK, "transfer", retry=True)
            return
        if self._attempts.get(gateway, {}).get(key, -1) >= frame.attempt and self._holds(key):
            self._fail(request, "invalid", "this attempt, or a later one, is known here already", part, retry=False)
            return
        if room is not None and self._uses(room):
            self._fail(request, "invalid", _ROOM_IN_USE.format(room), part, retry=False)
            return
        if not self._prepared(held, request, part):
            return
        try:
            self._hand_on(request, frame, now)
        except RequestRejected as refusal:
            self._fail(request, refusal.code, str(refusal), part, retry=refusal.retry)
            return
        self._attempts.setdefault(gateway, {})[key] = frame.attempt
        self._outbox.phases.arrived(request)
        if held.paused:
            self.scheduler.pause(key, frame.attempt, True)

    def _prepared(self, held: HeldRequest, request: Request, part: Part) -> bool:
        """Gives it its grammar and its adapter; False where it has to wait for them, or has failed."""
        params, digest = request.params, request.adapter
        grammar = self._grammars.ask(params) if params.grammar else None
        adapter = self.adapters.ask(digest) if digest else None
        if isinstance(grammar, str):
            self._fail(request, "invalid", f"its grammar: {grammar}", part, retry=False)
        elif isinstance(adapter, str):
            self._fail(request, "internal", adapter, part, retry=True)
        elif not (params.grammar and grammar is None) and not (digest and adapter is None):
            request.grammar = compilations.position(grammar) if grammar is not None else None
            request.loaded_adapter = adapter
            return True
        elif len(self._held) >= self.scheduler.limits.max_waiting:
            self._fail(request, "overloaded", f"{len(self._held)} requests wait already", part, retry=True)
        else:
            self._held.add(held)
        return False

    def _hand_on(self, request: Request, frame: Generate | Prefill | Decode, now: float) -> None:
        if isinstance(frame, Decode):
            assert self.receivers is not None
            self.receivers.reserve(request, frame.source, now)
            return
        self.scheduler.add(request, now)
        if isinstance(frame, Prefill):
            assert self.senders is not None
            self.senders.prefill(request, frame.to)

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
        if self.senders is None:
            self._outbox.fail(key, frame.attempt, "transfer", _NO_LINK, "transfer", True)
        elif len(running) != 1 or len(running[0].choices) > 1 or running[0].sending or running[0].room is not None:
            why = "it cannot be migrated: it is not one running sequence here"
            self._outbox.fail(key, frame.attempt, "transfer", why, "transfer", True)
        elif self._uses(frame.room):
            self._outbox.fail(key, frame.attempt, "invalid", _ROOM_IN_USE.format(frame.room), "transfer", False)
        else:
            self.senders.migrate(running[0], frame)

    # ── ends ──

    def _fail(self, request: Request, code: FailureCode, message: str, part: Part, *, retry: bool) -> None:
        self._outbox.fail(request.id, request.attempt, code, message, part, retry)

    def _fail_held(self, held: HeldRequest, code: FailureCode, message: str, *, retry: bool) -> None:
        self._asks_again = True
        key, frame = key_of(held.gateway, held.frame.id), held.frame
        self._outbox.fail(key, frame.attempt, code, message, part_of(frame), retry)

    def _end(self, ended: Ended, reason: str) -> None:
        if ended.requests or ended.incoming:
            self.news = True
        if self.senders is not None and ended.requests:
            self.senders.ended(ended.requests, reason)
        if self.receivers is not None and ended.incoming:
            self.receivers.ended(ended.incoming, reason)
        self._outbox.phases.ended(transfer.request for transfer in ended.incoming)

    def _holds(self, key: str) -> bool:
        return bool(self.scheduler.requests(key)) or (self.receivers is not None and self.receivers.holds(key))

    def _uses(self, room: int) -> bool:
        sides = (self.senders, self.receivers)
        return any(side is not None and side.uses(room) for side in sides)


def part_of(frame: Generate | Prefill | Decode) -> Part:
    """What this worker is to do."""
    return "prefill" if isinstance(frame, Prefill) else "decode"
