"""All hand-offs of one side by (room, attempt): how they are opened, kept alive, ended and forgotten.

What a grant, a put or a checksum means is the business of `sender` and `receiver`; both drive their sessions through
this registry, so that leases, tombstones and the ends of connections are alike on both sides.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from legato_engine.transfer.context import TransferContext
from legato_engine.transfer.events import Aborted, Cause, GrantRevoked, Side, TransferEvent
from legato_engine.transfer.session import Action, Session, SessionEvent, SessionState
from legato_protocol import handoff

Key = tuple[int, int]  # room, attempt

S = SessionState
_RENEWED = frozenset((S.GRANTED, S.PUSHING, S.OFFERED, S.REVOKING, S.RECEIVING))  # both sides still work on them
_LEAVING = frozenset((S.DRAINING, S.ANSWERING, S.ABORTING))
_LEASED = _RENEWED | _LEAVING | {S.FINISHED, S.CONNECTING, S.VERIFYING, S.PARKED}
_NOT_BEGUN = frozenset((S.UNKNOWN, S.PARKED))  # no call of the own core has opened them


@dataclass(frozen=True, slots=True)
class SessionFailure:
    """What went wrong first; see `events.Aborted`."""

    cause: Cause
    reason: str
    retry: bool = True


USED_BEFORE = SessionFailure("refused", "this room and attempt had a hand-off before")


@dataclass(slots=True)
class SessionRecord:
    """What either side remembers of one hand-off. Times are readings of the clock, in seconds."""

    key: Key
    session: Session
    epoch: str = ""  # of the receiver's arena: every message names it
    connection: int | None = None  # the only one that may carry this hand-off
    due: float = 0.0  # end of the lease; once the session has ended, of its memory
    renew_at: float = 0.0
    held: bool = False  # the own core knows of it, and opens it later
    failure: SessionFailure | None = None
    late: list[TransferEvent] = field(default_factory=list)  # to be reported once it is not `busy`

    @property
    def busy(self) -> bool:
        """Whether this worker itself still reads or writes the session's blocks."""
        return False

    @property
    def state(self) -> SessionState:
        return self.session.state

    @property
    def ended(self) -> bool:
        return self.session.ended

    @property
    def renewed(self) -> bool:
        """Whether both sides work on it, or will: each tells the other so, and any message starts the lease over."""
        return self.session.state in _RENEWED or (self.held and self.session.state is S.PARKED)

    @property
    def name(self) -> tuple[str, int, int]:
        """Epoch, room, attempt, as every message of the session begins."""
        return (self.epoch, *self.key)


R = TypeVar("R", bound=SessionRecord)


class SessionRegistry(Generic[R]):
    """The sessions of one side."""

    def __init__(
        self,
        side: Side,
        context: TransferContext,
        create: Callable[[Key, Session], R],
        perform: Callable[[R, Action], None],
    ) -> None:
        """`perform` does what the table asks of this side alone: see `step`."""
        self._side: Side = side
        self._peer: Side = "receiver" if side == "sender" else "sender"
        self._context = context
        self._create = create
        self._perform = perform
        self._rooms: dict[int, dict[int, R]] = {}  # by room, by attempt

    def __iter__(self) -> Iterator[R]:
        """All of them, ended ones included; sessions may be opened and forgotten meanwhile."""
        return iter([record for attempts in self._rooms.values() for record in attempts.values()])

    def get(self, key: Key) -> R | None:
        room, attempt = key
        return self._rooms.get(room, {}).get(attempt)

    def of_room(self, room: int) -> list[R]:
        """Every attempt that is remembered."""
        return list(self._rooms.get(room, {}).values())

    def open(self, key: Key) -> R:
        """The session of this key; a new one unless it is remembered."""
        return self.get(key) or self.restart(key)

    def restart(self, key: Key) -> R:
        """A new session, whatever is remembered of this key."""
        room, attempt = key
        record = self._create(key, Session(self._side))
        record.due = self._context.clock() + self._context.memory_of_ended
        self._rooms.setdefault(room, {})[attempt] = record
        return record

    def forget(self, record: R) -> None:
        room, attempt = record.key
        del self._rooms[room][attempt]
        if not self._rooms[room]:
            del self._rooms[room]

    def active(self) -> list[R]:
        """Those that the own core or the peer waits for."""
        return [each for each in self if each.late or not (each.ended or each.state in _NOT_BEGUN)]

    # life

    def step(self, record: R, event: SessionEvent) -> None:
        """Raises IllegalSessionEvent, and changes nothing, where the table has no row for this event."""
        before = record.state
        for action in record.session.step(event):
            self._act(record, action)
        now = self._context.clock()
        if record.ended and record.state is not before:
            record.due = now + self._context.memory_of_ended
        elif record.state in _LEAVING and before not in _LEAVING:
            record.due = now + self._context.lease

    def fail(self, record: R, event: SessionEvent, failure: SessionFailure) -> None:
        """As `step`, for what does not go as it should: the first failure is the one that is reported."""
        record.failure = record.failure or failure
        self.step(record, event)

    def begin_lease(self, record: R) -> None:
        """From now on the peer has to be heard of, and hears of this side."""
        now = self._context.clock()
        record.due, record.renew_at = now + self._context.lease, now + self._context.renewal

    def extend_lease(self, record: R) -> None:
        record.due = self._context.clock() + self._context.lease

    def send(self, record: R, message: handoff.HandoffMessage) -> None:
        if record.connection is not None:
            self._context.peers.send(record.connection, message)

    def report(self, record: R, event: TransferEvent) -> None:
        """Tells the core, but of no end before this worker has let go of the blocks."""
        (record.late if record.ended and record.busy else self._context.outbox).append(event)

    def tell_late(self, record: R) -> None:
        """The session is not busy any more."""
        self._context.outbox += record.late
        record.late.clear()

    # what happens to many at once

    def connection_ended(self, connection: int, cause: Cause, reason: str) -> None:
        """No put over it can land any more, here or there: every session over it ends."""
        for record in self:
            if record.connection == connection and not record.ended:
                awaited = record.state is SessionState.FENCING
                event = SessionEvent.FENCED if awaited else SessionEvent.PEER_DOWN
                self.fail(record, event, SessionFailure(cause, f"the {self._peer} is gone: {reason}"))

    def tick(self, now: float) -> None:
        for record in self:
            if record.state in _LEASED and now >= record.due:
                silent = SessionFailure("peer_silent", f"the {self._peer} said nothing for too long")
                self.fail(record, SessionEvent.LEASE_END, silent)
            elif record.renewed and now >= record.renew_at:
                record.renew_at = now + self._context.renewal
                self.send(record, handoff.Renew(*record.name))
            elif (record.ended or record.state is SessionState.UNKNOWN) and not record.busy and now >= record.due:
                self.forget(record)

    def timers(self) -> Iterator[float]:
        """When `tick` has something to do."""
        for record in self:
            if record.renewed:
                yield min(record.due, record.renew_at)
            elif record.state not in (SessionState.WAITING, SessionState.FENCING) and not (
                record.ended and record.busy
            ):
                yield record.due

    # inside

    def _act(self, record: R, action: Action) -> None:
        context = self._context
        match action:
            case Action.FENCE:
                assert record.connection is not None
                context.fence(record.connection)
            case Action.REPORT_REVOKED:
                self.report(record, GrantRevoked(self._side, *record.key))
            case Action.REPORT_ABORTED:
                failure = record.failure or USED_BEFORE
                context.totals.aborted += 1
                self.report(record, Aborted(self._side, *record.key, failure.cause, failure.reason, failure.retry))
            case Action.SEND_ACK:
                self.send(record, handoff.AbortAck(*record.name))
            case _:
                self._perform(record, action)
