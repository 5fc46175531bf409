"""The life of one hand-off, (room, attempt), as a table of states × events for each side. No sockets, no clock.

Whoever drives a session performs the actions that `step` returns, in their order. What is not in the table is an
illegal move and raises; messages that may come late or twice have rows of their own that change nothing. The diagrams
in docs/handoff.md are made from this table by `diagram`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from legato_engine.transfer.events import Side


class IllegalMove(Exception):
    """The table has no row for this event in this state. For a message it means that the peer broke the protocol."""


class State(Enum):
    UNKNOWN = "unknown"
    # sender
    PARKED = "parked"  # a grant came before the room is known here
    WAITING = "waiting"  # for a grant
    GRANTED = "granted"  # nothing was put yet: the grant may be revoked
    PUSHING = "pushing"
    FINISHED = "finished"  # Final was sent
    DRAINING = "draining"  # gave up; the puts in flight must end before the peer is told
    ANSWERING = "answering"  # the peer gave up; the puts in flight must end before the ack
    ABORTED = "aborted"  # tombstone
    # receiver
    CONNECTING = "connecting"  # the grant is not sent yet
    OFFERED = "offered"
    REVOKING = "revoking"
    REVOKED = "revoked"  # may be offered again
    RECEIVING = "receiving"
    VERIFYING = "verifying"  # Final came; blocks may be missing still
    ABORTING = "aborting"  # quarantine: the ack is missing
    RELEASED = "released"  # tombstone
    # both
    FENCING = "fencing"  # the endpoint is being closed
    COMMITTED = "committed"  # tombstone


class Event(Enum):
    # calls
    EXPECT = "expect"
    OFFER = "offer"
    PUT = "put"
    FINISH = "finish"
    REVOKE = "revoke"
    CANCEL = "cancel"
    # found out here
    READY = "connection ready"
    DRAINED = "puts ended"
    PUT_FAILED = "put failed"
    VERIFIED = "all verified"
    CORRUPT = "corrupt"
    LEASE_END = "lease ended"
    FENCED = "fenced"
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
    TELL_GRANTED = "tell Granted"
    TELL_REVOKED = "tell Revoked"
    TELL_WRITING = "tell WritingBegan"
    TELL_COMMITTED = "tell Committed"
    TELL_ARRIVED = "tell Arrived"
    TELL_ABORTED = "tell Aborted"
    TELL_RELEASED = "tell Released"


@dataclass(frozen=True, slots=True)
class Move:
    state: State
    actions: tuple[Action, ...] = ()


Table = dict[tuple[State, Event], Move]


def _stay(states: Iterable[State], events: Iterable[Event], *actions: Action) -> Table:
    events = tuple(events)
    return {(state, event): Move(state, actions) for state in states for event in events}


def _same(states: Iterable[State], event: Event, to: State, *actions: Action) -> Table:
    return {(state, event): Move(to, actions) for state in states}


S, E, A = State, Event, Action

_SENDER_LIVE = (S.GRANTED, S.PUSHING, S.FINISHED)
_SENDER_LEAVING = (S.DRAINING, S.ANSWERING)
_SENDER_ENDED = (S.COMMITTED, S.ABORTED)
_TO_SENDER = (E.GOT_GRANT, E.GOT_REVOKE, E.GOT_RENEW, E.GOT_COMMIT, E.GOT_ACK)

SENDER: Table = {
    # what may come late, twice or crosswise changes nothing
    **_stay((S.UNKNOWN, S.PARKED, S.WAITING), (E.GOT_RENEW, E.GOT_ACK)),
    **_stay((S.UNKNOWN, S.WAITING), (E.PEER_DOWN,)),
    **_stay((*_SENDER_LIVE, *_SENDER_LEAVING), (E.GOT_GRANT, E.GOT_RENEW, E.GOT_ACK)),
    **_stay((S.PUSHING, S.FINISHED, *_SENDER_LEAVING), (E.GOT_REVOKE,)),  # too late
    **_stay(_SENDER_LEAVING, (E.CANCEL, E.PUT_FAILED)),
    **_stay((S.FENCING,), (*_TO_SENDER, E.GOT_ABORT, E.CANCEL, E.PUT_FAILED, E.DRAINED)),
    **_stay(_SENDER_ENDED, (*_TO_SENDER, E.CANCEL, E.PEER_DOWN, E.FENCED, E.PUT_FAILED)),
    **_stay(_SENDER_ENDED, (E.GOT_ABORT,), A.SEND_ACK),
    # before the grant
    (S.UNKNOWN, E.EXPECT): Move(S.WAITING),
    (S.UNKNOWN, E.GOT_GRANT): Move(S.PARKED),
    (S.UNKNOWN, E.GOT_REVOKE): Move(S.UNKNOWN, (A.SEND_REVOKED,)),
    (S.UNKNOWN, E.GOT_ABORT): Move(S.ABORTED, (A.SEND_ACK,)),
    (S.PARKED, E.EXPECT): Move(S.GRANTED, (A.TELL_GRANTED,)),
    (S.PARKED, E.GOT_GRANT): Move(S.PARKED),
    (S.PARKED, E.GOT_REVOKE): Move(S.UNKNOWN, (A.SEND_REVOKED,)),
    (S.PARKED, E.GOT_ABORT): Move(S.ABORTED, (A.SEND_ACK,)),
    (S.PARKED, E.CANCEL): Move(S.ABORTED, (A.SEND_ABORT,)),
    (S.PARKED, E.LEASE_END): Move(S.ABORTED, (A.SEND_ABORT,)),
    (S.PARKED, E.PEER_DOWN): Move(S.ABORTED),
    (S.WAITING, E.GOT_GRANT): Move(S.GRANTED, (A.TELL_GRANTED,)),
    (S.WAITING, E.GOT_REVOKE): Move(S.WAITING, (A.SEND_REVOKED,)),
    (S.WAITING, E.GOT_ABORT): Move(S.ABORTED, (A.SEND_ACK, A.TELL_ABORTED)),
    (S.WAITING, E.CANCEL): Move(S.ABORTED, (A.TELL_ABORTED,)),
    # under way
    (S.GRANTED, E.PUT): Move(S.PUSHING),
    (S.PUSHING, E.PUT): Move(S.PUSHING),
    (S.GRANTED, E.FINISH): Move(S.FINISHED, (A.SEND_FINAL,)),  # the receiver has every block already
    (S.PUSHING, E.FINISH): Move(S.FINISHED, (A.SEND_FINAL,)),
    (S.GRANTED, E.GOT_REVOKE): Move(S.WAITING, (A.SEND_REVOKED, A.TELL_REVOKED)),
    (S.FINISHED, E.GOT_COMMIT): Move(S.COMMITTED, (A.TELL_COMMITTED,)),
    # the end: puts in flight read the sender's blocks, so they end first
    (S.GRANTED, E.GOT_ABORT): Move(S.ABORTED, (A.SEND_ACK, A.TELL_ABORTED)),
    (S.FINISHED, E.GOT_ABORT): Move(S.ABORTED, (A.SEND_ACK, A.TELL_ABORTED)),
    (S.PUSHING, E.GOT_ABORT): Move(S.ANSWERING),
    (S.DRAINING, E.GOT_ABORT): Move(S.ANSWERING),
    (S.ANSWERING, E.GOT_ABORT): Move(S.ANSWERING),
    (S.GRANTED, E.CANCEL): Move(S.ABORTED, (A.SEND_ABORT, A.TELL_ABORTED)),
    (S.FINISHED, E.CANCEL): Move(S.ABORTED, (A.SEND_ABORT, A.TELL_ABORTED)),
    (S.PUSHING, E.CANCEL): Move(S.DRAINING),
    (S.PUSHING, E.PUT_FAILED): Move(S.DRAINING),
    (S.DRAINING, E.DRAINED): Move(S.ABORTED, (A.SEND_ABORT, A.TELL_ABORTED)),
    (S.ANSWERING, E.DRAINED): Move(S.ABORTED, (A.SEND_ACK, A.TELL_ABORTED)),
    **_same((*_SENDER_LIVE, *_SENDER_LEAVING), E.LEASE_END, S.FENCING, A.FENCE),
    **_same((*_SENDER_LIVE, *_SENDER_LEAVING, S.FENCING), E.PEER_DOWN, S.ABORTED, A.TELL_ABORTED),
    (S.FENCING, E.FENCED): Move(S.ABORTED, (A.TELL_ABORTED,)),
    # a tombstone refuses
    **_stay(_SENDER_ENDED, (E.EXPECT,), A.TELL_ABORTED),
    (S.ABORTED, E.GOT_GRANT): Move(S.ABORTED, (A.SEND_ABORT,)),
    (S.ABORTED, E.GOT_REVOKE): Move(S.ABORTED, (A.SEND_REVOKED,)),
}

_OPEN = (S.OFFERED, S.REVOKING, S.RECEIVING, S.VERIFYING)
_QUARANTINED = (S.ABORTING, S.FENCING)
_RECEIVER_ENDED = (S.COMMITTED, S.RELEASED, S.REVOKED)
_FROM_SENDER = (E.GOT_WRITTEN, E.GOT_FINAL, E.GOT_RENEW, E.GOT_REVOKED)

RECEIVER: Table = {
    **_stay(_OPEN, (E.GOT_RENEW, E.GOT_ACK)),
    **_stay((S.OFFERED, S.RECEIVING, S.VERIFYING), (E.GOT_REVOKED,)),
    **_stay((S.RECEIVING, S.VERIFYING, S.REVOKING), (E.REVOKE,)),
    **_stay(_QUARANTINED, (*_FROM_SENDER, E.CANCEL, E.REVOKE)),
    **_stay(_RECEIVER_ENDED, (E.GOT_ACK, E.GOT_REVOKED, E.CANCEL, E.REVOKE, E.PEER_DOWN, E.FENCED)),
    **_stay((S.COMMITTED,), (E.GOT_WRITTEN, E.GOT_RENEW)),
    **_stay((S.CONNECTING, S.REVOKED), (E.GOT_RENEW,)),
    **_stay((S.CONNECTING,), (E.GOT_ACK, E.GOT_REVOKED)),
    # nothing was sent yet
    (S.UNKNOWN, E.OFFER): Move(S.CONNECTING),
    (S.REVOKED, E.OFFER): Move(S.CONNECTING),
    (S.CONNECTING, E.READY): Move(S.OFFERED, (A.SEND_GRANT,)),
    (S.CONNECTING, E.REVOKE): Move(S.REVOKED, (A.TELL_REVOKED,)),
    (S.CONNECTING, E.GOT_ABORT): Move(S.RELEASED, (A.SEND_ACK, A.TELL_ABORTED, A.TELL_RELEASED)),
    **_same((S.CONNECTING,), E.CANCEL, S.RELEASED, A.TELL_ABORTED, A.TELL_RELEASED),
    **_same((S.CONNECTING,), E.LEASE_END, S.RELEASED, A.TELL_ABORTED, A.TELL_RELEASED),
    # under way
    (S.OFFERED, E.REVOKE): Move(S.REVOKING, (A.SEND_REVOKE,)),
    (S.REVOKING, E.GOT_REVOKED): Move(S.REVOKED, (A.TELL_REVOKED,)),
    (S.OFFERED, E.GOT_WRITTEN): Move(S.RECEIVING, (A.TELL_WRITING,)),
    (S.REVOKING, E.GOT_WRITTEN): Move(S.RECEIVING, (A.TELL_WRITING,)),  # too late: the session goes on
    (S.RECEIVING, E.GOT_WRITTEN): Move(S.RECEIVING),
    (S.VERIFYING, E.GOT_WRITTEN): Move(S.VERIFYING),
    **_same((S.OFFERED, S.REVOKING), E.GOT_FINAL, S.VERIFYING, A.TELL_WRITING),
    **_same((S.RECEIVING, S.VERIFYING), E.GOT_FINAL, S.VERIFYING),
    (S.VERIFYING, E.VERIFIED): Move(S.COMMITTED, (A.SEND_COMMIT, A.TELL_ARRIVED)),
    # the end: granted blocks stay in quarantine until no write can land any more
    **_same(_OPEN, E.CANCEL, S.ABORTING, A.SEND_ABORT, A.TELL_ABORTED),
    **_same(_OPEN, E.CORRUPT, S.ABORTING, A.SEND_ABORT, A.TELL_ABORTED),
    **_same(_OPEN, E.LEASE_END, S.FENCING, A.FENCE, A.TELL_ABORTED),
    **_same(_OPEN, E.GOT_ABORT, S.RELEASED, A.SEND_ACK, A.TELL_ABORTED, A.TELL_RELEASED),
    **_same((S.CONNECTING, *_OPEN), E.PEER_DOWN, S.RELEASED, A.TELL_ABORTED, A.TELL_RELEASED),
    (S.ABORTING, E.LEASE_END): Move(S.FENCING, (A.FENCE,)),
    **_same(_QUARANTINED, E.GOT_ACK, S.RELEASED, A.TELL_RELEASED),
    **_same(_QUARANTINED, E.GOT_ABORT, S.RELEASED, A.SEND_ACK, A.TELL_RELEASED),
    **_same(_QUARANTINED, E.PEER_DOWN, S.RELEASED, A.TELL_RELEASED),
    (S.FENCING, E.FENCED): Move(S.RELEASED, (A.TELL_RELEASED,)),
    # tombstones, and rooms that are not known
    **_stay(_RECEIVER_ENDED, (E.GOT_ABORT,), A.SEND_ACK),
    **_stay((S.RELEASED, S.REVOKED), (E.GOT_WRITTEN, E.GOT_FINAL), A.SEND_ABORT),
    (S.RELEASED, E.GOT_RENEW): Move(S.RELEASED, (A.SEND_ABORT,)),
    (S.COMMITTED, E.GOT_FINAL): Move(S.COMMITTED, (A.SEND_COMMIT,)),
    (S.UNKNOWN, E.GOT_ABORT): Move(S.RELEASED, (A.SEND_ACK,)),
    **_same((S.UNKNOWN,), E.GOT_WRITTEN, S.RELEASED, A.SEND_ABORT),
    **_same((S.UNKNOWN,), E.GOT_FINAL, S.RELEASED, A.SEND_ABORT),
    **_same((S.UNKNOWN,), E.GOT_RENEW, S.RELEASED, A.SEND_ABORT),
    **_stay((S.UNKNOWN,), (E.GOT_ACK, E.GOT_REVOKED)),
    **_stay((S.COMMITTED, S.RELEASED), (E.OFFER,), A.TELL_ABORTED, A.TELL_RELEASED),
}

TABLES: dict[Side, Table] = {"sender": SENDER, "receiver": RECEIVER}
ENDED = frozenset((S.COMMITTED, S.ABORTED, S.RELEASED, S.REVOKED))


class Session:
    """Where one side of one hand-off stands."""

    __slots__ = ("side", "state")

    def __init__(self, side: Side) -> None:
        self.side = side
        self.state = State.UNKNOWN

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    def may(self, event: Event) -> bool:
        """Whether the table has a row for this event now."""
        return (self.state, event) in TABLES[self.side]

    def step(self, event: Event) -> tuple[Action, ...]:
        """Moves and returns what is to be done. Raises IllegalMove where the table has no row."""
        move = TABLES[self.side].get((self.state, event))
        if move is None:
            raise IllegalMove(f"{self.side}: {event.value!r} while {self.state.value}")
        self.state = move.state
        return move.actions


def diagram(side: Side) -> str:
    """The side's table as a Mermaid state diagram: every move that changes something."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.UNKNOWN.value}"]
    for (state, event), move in TABLES[side].items():
        if move.state != state or move.actions:
            effects = f" / {', '.join(action.value for action in move.actions)}" if move.actions else ""
            lines.append(f"    {state.value} --> {move.state.value}: {event.value}{effects}")
    return "\n".join(lines)


def rewrite(page: str) -> str:
    """The page with the Mermaid block under each "The sender"/"The receiver" heading made from the tables anew."""
    for side in TABLES:
        head, mark, rest = page.partition(f"## The {side}\n")
        before, fence, block = rest.partition("```mermaid\n")
        _, end, after = block.partition("\n```")
        page = head + mark + before + fence + diagram(side) + end + after
    return page


if __name__ == "__main__":
    import sys
    from pathlib import Path

    for name in sys.argv[1:]:
        Path(name).write_text(rewrite(Path(name).read_text()))
