"""The lifecycle of one hand-off, (room, attempt), as a table of states × events for each side. No sockets, no clock.

The caller performs the actions that `step` returns, in order. Events that are not in the table are illegal and raise;
messages that may arrive late or twice have rows that change nothing. `legato_engine.diagrams` generates the diagrams in
docs/handoff.md from this table.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from legato_engine.transfer.session.events import Side


class IllegalSessionEvent(Exception):
    """The table has no row for this event in this state. For a message it means that the peer broke the protocol."""


class SessionState(Enum):
    UNKNOWN = "unknown"
    # sender
    PARKED = "parked"  # a grant arrived before the core expected the room
    WAITING = "waiting"  # for a grant
    GRANTED = "granted"  # nothing was put yet: the grant may be revoked
    PUSHING = "pushing"
    FINISHED = "finished"  # Final was sent
    DRAINING = "draining"  # given up here; the puts in flight must end before Abort is sent
    ANSWERING = "answering"  # the peer gave up; the puts in flight must end before AbortAck is sent
    ABORTED = "aborted"  # tombstone
    # receiver
    CONNECTING = "connecting"  # the grant is not sent yet
    OFFERED = "offered"
    REVOKING = "revoking"
    REVOKED = "revoked"  # may be offered again
    RECEIVING = "receiving"
    VERIFYING = "verifying"  # Final was received; blocks may still be missing
    ABORTING = "aborting"  # quarantine until AbortAck
    RELEASED = "released"  # tombstone
    # both
    FENCING = "fencing"  # the endpoint is being closed
    COMMITTED = "committed"  # tombstone


class SessionEvent(Enum):
    # calls
    EXPECT = "expect"
    OFFER = "offer"
    PUT = "put"
    FINISH = "finish"
    REVOKE = "revoke"
    CANCEL = "cancel"
    # local events
    READY = "connection ready"
    DRAINED = "puts ended"
    PUT_FAILED = "put failed"
    VERIFIED = "all verified"
    CORRUPT = "corrupt"
    LEASE_END = "lease ended"
    FENCED = "endpoint closed"
    PEER_DOWN = "peer down"
    # messages
    GOT_GRANT = "Grant"
    GOT_REVOKE = "Revoke"
    GOT_REVOKED = "Revoked"
    GOT_WRITTEN = "Written"
    GOT_FINAL = "Final"
    GOT_RENEW = "Renew"
    GOT_COMMIT = "Commit"
    GOT_ABORT = "Abort"
    GOT_ACK = "AbortAck"


class Action(Enum):
    SEND_GRANT = "send Grant"
    SEND_REVOKE = "send Revoke"
    SEND_REVOKED = "send Revoked"
    SEND_FINAL = "send Final"
    SEND_COMMIT = "send Commit"
    SEND_ABORT = "send Abort"
    SEND_ACK = "send AbortAck"
    FENCE = "fence"
    REPORT_GRANTED = "report Granted"
    REPORT_REVOKED = "report GrantRevoked"
    REPORT_WRITING = "report WritingBegan"
    REPORT_COMMITTED = "report Committed"
    REPORT_ARRIVED = "report Arrived"
    REPORT_ABORTED = "report Aborted"
    REPORT_RELEASED = "report Released"


@dataclass(frozen=True, slots=True)
class SessionTransition:
    state: SessionState
    actions: tuple[Action, ...] = ()


Table = dict[tuple[SessionState, SessionEvent], SessionTransition]


def _stay(states: Iterable[SessionState], events: Iterable[SessionEvent], *actions: Action) -> Table:
    events = tuple(events)
    return {(state, event): SessionTransition(state, actions) for state in states for event in events}


def _go(states: Iterable[SessionState], events: Iterable[SessionEvent], to: SessionState, *actions: Action) -> Table:
    events = tuple(events)
    return {(state, event): SessionTransition(to, actions) for state in states for event in events}


S, E, A = SessionState, SessionEvent, Action

_SENDER_LIVE = (S.GRANTED, S.PUSHING, S.FINISHED)
_SENDER_LEAVING = (S.DRAINING, S.ANSWERING)
_SENDER_ENDED = (S.COMMITTED, S.ABORTED)
_TO_SENDER = (E.GOT_GRANT, E.GOT_REVOKE, E.GOT_RENEW, E.GOT_COMMIT, E.GOT_ACK)

SENDER: Table = {
    # messages that may arrive late, twice or crossing others change nothing
    **_stay((S.UNKNOWN, S.PARKED, S.WAITING), (E.GOT_RENEW, E.GOT_ACK)),
    **_stay((*_SENDER_LIVE, *_SENDER_LEAVING), (E.GOT_GRANT, E.GOT_RENEW, E.GOT_ACK)),
    **_stay((S.PUSHING, S.FINISHED, *_SENDER_LEAVING), (E.GOT_REVOKE,)),  # too late
    **_stay(_SENDER_LEAVING, (E.CANCEL, E.PUT_FAILED)),
    **_stay((S.FENCING,), (*_TO_SENDER, E.GOT_ABORT, E.CANCEL, E.PUT_FAILED, E.DRAINED)),
    **_stay(_SENDER_ENDED, (*_TO_SENDER, E.PUT_FAILED)),
    **_stay(_SENDER_ENDED, (E.GOT_ABORT,), A.SEND_ACK),
    # before the grant
    (S.UNKNOWN, E.EXPECT): SessionTransition(S.WAITING),
    (S.UNKNOWN, E.GOT_GRANT): SessionTransition(S.PARKED),
    (S.UNKNOWN, E.GOT_REVOKE): SessionTransition(S.UNKNOWN, (A.SEND_REVOKED,)),
    (S.UNKNOWN, E.GOT_ABORT): SessionTransition(S.ABORTED, (A.SEND_ACK,)),
    (S.PARKED, E.EXPECT): SessionTransition(S.GRANTED, (A.REPORT_GRANTED,)),
    (S.PARKED, E.GOT_GRANT): SessionTransition(S.PARKED),
    (S.PARKED, E.GOT_REVOKE): SessionTransition(S.UNKNOWN, (A.SEND_REVOKED,)),
    (S.PARKED, E.GOT_ABORT): SessionTransition(S.ABORTED, (A.SEND_ACK,)),
    (S.PARKED, E.CANCEL): SessionTransition(S.ABORTED, (A.SEND_ABORT,)),
    (S.PARKED, E.LEASE_END): SessionTransition(S.ABORTED, (A.SEND_ABORT,)),
    (S.PARKED, E.PEER_DOWN): SessionTransition(S.ABORTED),
    (S.WAITING, E.GOT_GRANT): SessionTransition(S.GRANTED, (A.REPORT_GRANTED,)),
    (S.WAITING, E.GOT_REVOKE): SessionTransition(S.WAITING, (A.SEND_REVOKED,)),
    (S.WAITING, E.GOT_ABORT): SessionTransition(S.ABORTED, (A.SEND_ACK, A.REPORT_ABORTED)),
    (S.WAITING, E.CANCEL): SessionTransition(S.ABORTED, (A.REPORT_ABORTED,)),
    # in progress
    (S.GRANTED, E.PUT): SessionTransition(S.PUSHING),
    (S.PUSHING, E.PUT): SessionTransition(S.PUSHING),
    (S.GRANTED, E.FINISH): SessionTransition(S.FINISHED, (A.SEND_FINAL,)),  # the receiver has every block already
    (S.PUSHING, E.FINISH): SessionTransition(S.FINISHED, (A.SEND_FINAL,)),
    (S.GRANTED, E.GOT_REVOKE): SessionTransition(S.WAITING, (A.SEND_REVOKED, A.REPORT_REVOKED)),
    (S.FINISHED, E.GOT_COMMIT): SessionTransition(S.COMMITTED, (A.REPORT_COMMITTED,)),
    # the end: puts in flight read the sender's blocks, so they end first
    (S.GRANTED, E.GOT_ABORT): SessionTransition(S.ABORTED, (A.SEND_ACK, A.REPORT_ABORTED)),
    (S.FINISHED, E.GOT_ABORT): SessionTransition(S.ABORTED, (A.SEND_ACK, A.REPORT_ABORTED)),
    (S.PUSHING, E.GOT_ABORT): SessionTransition(S.ANSWERING),
    (S.DRAINING, E.GOT_ABORT): SessionTransition(S.ANSWERING),
    (S.ANSWERING, E.GOT_ABORT): SessionTransition(S.ANSWERING),
    (S.GRANTED, E.CANCEL): SessionTransition(S.ABORTED, (A.SEND_ABORT, A.REPORT_ABORTED)),
    (S.FINISHED, E.CANCEL): SessionTransition(S.ABORTED, (A.SEND_ABORT, A.REPORT_ABORTED)),
    (S.PUSHING, E.CANCEL): SessionTransition(S.DRAINING),
    (S.PUSHING, E.PUT_FAILED): SessionTransition(S.DRAINING),
    (S.DRAINING, E.DRAINED): SessionTransition(S.ABORTED, (A.SEND_ABORT, A.REPORT_ABORTED)),
    (S.ANSWERING, E.DRAINED): SessionTransition(S.ABORTED, (A.SEND_ACK, A.REPORT_ABORTED)),
    **_go((*_SENDER_LIVE, *_SENDER_LEAVING), (E.LEASE_END,), S.FENCING, A.FENCE),
    **_go((*_SENDER_LIVE, *_SENDER_LEAVING), (E.PEER_DOWN,), S.ABORTED, A.REPORT_ABORTED),
    (S.FENCING, E.FENCED): SessionTransition(S.ABORTED, (A.REPORT_ABORTED,)),
    # a tombstone refuses
    **_stay(_SENDER_ENDED, (E.EXPECT,), A.REPORT_ABORTED),
    (S.ABORTED, E.GOT_GRANT): SessionTransition(S.ABORTED, (A.SEND_ABORT,)),
    (S.ABORTED, E.GOT_REVOKE): SessionTransition(S.ABORTED, (A.SEND_REVOKED,)),
}

_OPEN = (S.OFFERED, S.REVOKING, S.RECEIVING, S.VERIFYING)
_QUARANTINED = (S.ABORTING, S.FENCING)
_RECEIVER_ENDED = (S.COMMITTED, S.RELEASED, S.REVOKED)
_FROM_SENDER = (E.GOT_WRITTEN, E.GOT_FINAL, E.GOT_RENEW, E.GOT_REVOKED)

RECEIVER: Table = {
    **_stay(_OPEN, (E.GOT_RENEW, E.GOT_ACK)),
    **_stay((S.OFFERED, S.RECEIVING, S.VERIFYING), (E.GOT_REVOKED,)),
    **_stay(_QUARANTINED, (*_FROM_SENDER, E.CANCEL)),
    **_stay(_RECEIVER_ENDED, (E.GOT_ACK, E.GOT_REVOKED)),
    **_stay((S.COMMITTED,), (E.GOT_WRITTEN, E.GOT_RENEW)),
    **_stay((S.CONNECTING, S.REVOKED), (E.GOT_RENEW,)),
    **_stay((S.CONNECTING,), (E.GOT_ACK, E.GOT_REVOKED)),
    # nothing was sent yet
    (S.UNKNOWN, E.OFFER): SessionTransition(S.CONNECTING),
    (S.REVOKED, E.OFFER): SessionTransition(S.CONNECTING),
    (S.CONNECTING, E.READY): SessionTransition(S.OFFERED, (A.SEND_GRANT,)),
    (S.CONNECTING, E.REVOKE): SessionTransition(S.REVOKED, (A.REPORT_REVOKED,)),
    (S.CONNECTING, E.GOT_ABORT): SessionTransition(S.RELEASED, (A.SEND_ACK, A.REPORT_ABORTED, A.REPORT_RELEASED)),
    **_go((S.CONNECTING,), (E.CANCEL, E.LEASE_END), S.RELEASED, A.REPORT_ABORTED, A.REPORT_RELEASED),
    # in progress
    (S.OFFERED, E.REVOKE): SessionTransition(S.REVOKING, (A.SEND_REVOKE,)),
    (S.REVOKING, E.GOT_REVOKED): SessionTransition(S.REVOKED, (A.REPORT_REVOKED,)),
    (S.OFFERED, E.GOT_WRITTEN): SessionTransition(S.RECEIVING, (A.REPORT_WRITING,)),
    (S.REVOKING, E.GOT_WRITTEN): SessionTransition(S.RECEIVING, (A.REPORT_WRITING,)),  # too late: the session goes on
    (S.RECEIVING, E.GOT_WRITTEN): SessionTransition(S.RECEIVING),
    (S.VERIFYING, E.GOT_WRITTEN): SessionTransition(S.VERIFYING),
    **_go((S.OFFERED, S.REVOKING), (E.GOT_FINAL,), S.VERIFYING, A.REPORT_WRITING),
    **_go((S.RECEIVING, S.VERIFYING), (E.GOT_FINAL,), S.VERIFYING),
    (S.VERIFYING, E.VERIFIED): SessionTransition(S.COMMITTED, (A.SEND_COMMIT, A.REPORT_ARRIVED)),
    # the end: granted blocks stay in quarantine until no write can land any more
    **_go(_OPEN, (E.CANCEL, E.CORRUPT), S.ABORTING, A.SEND_ABORT, A.REPORT_ABORTED),
    **_go(_OPEN, (E.LEASE_END,), S.FENCING, A.FENCE, A.REPORT_ABORTED),
    **_go(_OPEN, (E.GOT_ABORT,), S.RELEASED, A.SEND_ACK, A.REPORT_ABORTED, A.REPORT_RELEASED),
    **_go((S.CONNECTING, *_OPEN), (E.PEER_DOWN,), S.RELEASED, A.REPORT_ABORTED, A.REPORT_RELEASED),
    (S.ABORTING, E.LEASE_END): SessionTransition(S.FENCING, (A.FENCE,)),
    **_go(_QUARANTINED, (E.GOT_ACK,), S.RELEASED, A.REPORT_RELEASED),
    **_go(_QUARANTINED, (E.GOT_ABORT,), S.RELEASED, A.SEND_ACK, A.REPORT_RELEASED),
    (S.ABORTING, E.PEER_DOWN): SessionTransition(S.RELEASED, (A.REPORT_RELEASED,)),
    (S.FENCING, E.FENCED): SessionTransition(S.RELEASED, (A.REPORT_RELEASED,)),
    # tombstones, and unknown rooms
    **_stay(_RECEIVER_ENDED, (E.GOT_ABORT,), A.SEND_ACK),
    **_stay((S.RELEASED, S.REVOKED), (E.GOT_WRITTEN, E.GOT_FINAL), A.SEND_ABORT),
    (S.RELEASED, E.GOT_RENEW): SessionTransition(S.RELEASED, (A.SEND_ABORT,)),
    (S.COMMITTED, E.GOT_FINAL): SessionTransition(S.COMMITTED, (A.SEND_COMMIT,)),
    (S.UNKNOWN, E.GOT_ABORT): SessionTransition(S.RELEASED, (A.SEND_ACK,)),
    **_go((S.UNKNOWN,), (E.GOT_WRITTEN, E.GOT_FINAL, E.GOT_RENEW), S.RELEASED, A.SEND_ABORT),
    **_stay((S.UNKNOWN,), (E.GOT_ACK, E.GOT_REVOKED)),
    **_stay((S.COMMITTED, S.RELEASED), (E.OFFER,), A.REPORT_ABORTED, A.REPORT_RELEASED),
}

TABLES: dict[Side, Table] = {"sender": SENDER, "receiver": RECEIVER}
ENDED = frozenset((S.COMMITTED, S.ABORTED, S.RELEASED, S.REVOKED))


class Session:
    """The state of one side of one hand-off."""

    __slots__ = ("side", "state")

    def __init__(self, side: Side) -> None:
        self.side = side
        self.state = SessionState.UNKNOWN

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def may(self, event: SessionEvent) -> bool:
        """True if the table has a row for this event in the current state."""
        return (self.state, event) in TABLES[self.side]

    def step(self, event: SessionEvent) -> tuple[Action, ...]:
        """Changes the state and returns the actions to perform. Raises IllegalSessionEvent if the table has no row."""
        transition = TABLES[self.side].get((self.state, event))
        if transition is None:
            raise IllegalSessionEvent(f"{self.side}: {event.value!r} while {self.state.value}")
        self.state = transition.state
        return transition.actions
