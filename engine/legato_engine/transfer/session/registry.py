"""All sessions of one side by (room, attempt): opens, renews, ends and forgets them.

`sender` and `receiver` handle grants, puts and checksums; both drive their sessions through this registry, so that
leases, tombstones and ends of connections work the same on both sides.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from legato_engine.transfer.session.context import TransferContext
from legato_engine.transfer.session.events import Aborted, Cause, GrantRevoked, Side, TransferEvent
from legato_engine.transfer.session.lifecycle import Action, Session, SessionEvent, SessionState
from legato_protocol.wire import handoff

Key = tuple[int, int]  # room, attempt

S = SessionState
_RENEWED = frozenset((S.GRANTED, S.PUSHING, S.OFFERED, S.REVOKING, S.RECEIVING))  # both sides still work on them
_LEAVING = frozenset((S.DRAINING, S.ANSWERING, S.ABORTING))
_LEASED = _RENEWED | _LEAVING | {S.FINISHED, S.CONNECTING, S.VERIFYING, S.PARKED}
_UNOPENED = frozenset((S.UNKNOWN, S.PARKED))  # this worker's core has not opened them yet


@dataclass(frozen=True, slots=True)
class SessionFailure:
    """The first reason for which a session ended early; see `events.Aborted`."""

    cause: Cause
    reason: str
    wanted: bool = True


USED_BEFORE = SessionFailure("refused", "this room and attempt had a hand-off before")


@dataclass(slots=True)
class SessionRecord:
    """The common part of both sides' records of one hand-off. Times are clock readings, in seconds."""

    key: Key
    session: Session
    epoch: str = ""  # of the receiver's arena: every message names it
    connection: int | None = None  # the only one that may carry this hand-off
    due: float = 0.0  # end of the lease; for an ended session, the time to forget it
    renew_at: float = 0.0
    held: bool = False  # this worker's core will open it later
    failure: SessionFailure | None = None
    late: list[TransferEvent] = field(default_factory=list)  # to be reported once it is not `busy`

    @property
    def busy(self) -> bool:
        """True if this worker itself still reads or writes the session's blocks."""
        return False

    @property
    def state(self) -> SessionState:
        return self.session.state

    @property
    def ended(self) -> bool:
        return self.session.ended

    @property
    def renewed(self) -> bool:
        """True if both sides work on it, or will: they send renewals, and any message extends the lease."""
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
        """`perform` carries out the table's actions that are specific to this side, see `step`."""
        self._side: Side = side
        self._peer: Side = "receiver" if side == "sender" else "sender"
        self._context = context
        self._create = create
        self._perform = perform
        self._rooms: dict[int, dict[int, R]] = {}  # by room, by attempt

    def __iter__(self) -> Iterator[R]:
        """All sessions, including ended ones. Sessions may be opened and forgotten during the iteration."""
        return iter([record for attempts in self._rooms.values() for record in attempts.values()])

    def get(self, key: Key) -> R | None:
        room, attempt = key
        return self._rooms.get(room, {}).get(attempt)

    def in_room(self, room: int) -> list[R]:
        """The room's remembered sessions, one per attempt."""
        return list(self._rooms.get(room, {}).values())

    def open(self, key: Key) -> R:
        """Returns the session of this key, or a new one."""
        return self.get(key) or self.restart(key)

    def restart(self, key: Key) -> R:
        """Replaces the session of this key by a new one."""
        room, attempt = key
        record = self._create(key, Session(self._side))
        record.due = self._context.clock() + self._context.ended_retention
        self._rooms.setdefault(room, {})[attempt] = record
        return record

    def forget(self, record: R) -> None:
        room, attempt = record.key
        del self._rooms[room][attempt]
        if not self._rooms[room]:
            del self._rooms[room]

    def active(self) -> list[R]:
        """Sessions that this worker's core or the peer waits for."""
        return [each for each in self if each.late or not (each.ended or each.state in _UNOPENED)]

    # state changes

    def step(self, record: R, event: SessionEvent) -> None:
        """Applies an event. Raises IllegalSessionEvent, without changes, if the table has no row for it."""
        before = record.state
        for action in record.session.step(event):
            self._act(record, action)
        now = self._context.clock()
        if record.ended and record.state is not before:
            record.due = now + self._context.ended_retention
        elif record.state in _LEAVING and before not in _LEAVING:
            record.due = now + self._context.lease

    def fail(self, record: R, event: SessionEvent, failure: SessionFailure) -> None:
        """Applies a failure's event as `step` does. Only the first failure is reported."""
        record.failure = record.failure or failure
        self.step(record, event)

    def begin_lease(self, record: R) -> None:
        """From now on both sides have to renew the lease."""
        now = self._context.clock()
        record.due, record.renew_at = now + self._context.lease, now + self._context.renewal

    def extend_lease(self, record: R) -> None:
        record.due = self._context.clock() + self._context.lease

    def send(self, record: R, message: handoff.HandoffMessage) -> None:
        if record.connection is not None:
            self._context.peers.send(record.connection, message)

    def report(self, record: R, event: TransferEvent) -> None:
        """Reports an event to the core; an end only once this worker no longer uses the blocks."""
        (record.late if record.ended and record.busy else self._context.outbox).append(event)

    def report_late(self, record: R) -> None:
        """The session is no longer busy: reports its delayed events."""
        self._context.outbox += record.late
        record.late.clear()

    # events of several sessions

    def end_connection(self, connection: int, cause: Cause, reason: str) -> None:
        """Ends every session over a connection that has ended, on which no put can land any more."""
        for record in self:
            if record.connection == connection and not record.ended:
                awaited = record.state is SessionState.FENCING
                event = SessionEvent.FENCED if awaited else SessionEvent.PEER_DOWN
                self.fail(record, event, SessionFailure(cause, f"the {self._peer} is gone: {reason}"))

    def tick(self, now: float) -> None:
        for record in self:
            if record.state in _LEASED and now >= record.due:
                silent = SessionFailure("peer_silent", f"the {self._peer} was silent for too long")
                self.fail(record, SessionEvent.LEASE_END, silent)
            elif record.renewed and now >= record.renew_at:
                record.renew_at = now + self._context.renewal
                self.send(record, handoff.Renew(*record.name))
            elif (record.ended or record.state is SessionState.UNKNOWN) and not record.busy and now >= record.due:
                self.forget(record)

    def timers(self) -> Iterator[float]:
        """Times at which `tick` has work."""
        for record in self:
            if record.renewed:
                yield min(record.due, record.renew_at)
            elif record.state not in (SessionState.WAITING, SessionState.FENCING) and not (
                record.ended and record.busy
            ):
                yield record.due

    # internals

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
                self.report(record, Aborted(self._side, *record.key, failure.cause, failure.reason, failure.wanted))
            case Action.SEND_ACK:
                self.send(record, handoff.AbortAck(*record.name))
            case _:
                self._perform(record, action)
