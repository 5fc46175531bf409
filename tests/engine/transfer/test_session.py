"""The session table: complete where it must be, and the only truth that docs and code share."""

import pytest

from legato_engine.transfer.session.lifecycle import (
    ENDED,
    TABLES,
    Action,
    IllegalSessionEvent,
    Session,
    SessionEvent,
    SessionState,
)

S, E = SessionState, SessionEvent
SIDES = ("sender", "receiver")
MOVES = [(side, state, event, move) for side in SIDES for (state, event), move in TABLES[side].items()]


def states_of(side):
    return {state for state, _ in TABLES[side]} | {move.state for move in TABLES[side].values()}


@pytest.mark.parametrize("side", SIDES)
def test_what_is_not_in_the_table_raises_and_changes_nothing(side):
    """Legal events are tried with the code that drives them: see test_sides."""
    for state in SessionState:
        for event in SessionEvent:
            session = Session(side)
            session.state = state
            if not session.may(event):
                with pytest.raises(IllegalSessionEvent):
                    session.step(event)
                assert session.state is state


@pytest.mark.parametrize("side", SIDES)
def test_every_state_is_reached_and_every_unfinished_one_can_end(side):
    def reached(start):
        seen, edge = {start}, [start]
        while edge:
            before = edge.pop()
            after = {move.state for (state, _), move in TABLES[side].items() if state is before} - seen
            seen |= after
            edge += after
        return seen

    assert reached(S.UNKNOWN) == states_of(side)
    for state in states_of(side) - ENDED:
        assert reached(state) & ENDED, f"{state} cannot end"


FROM_PEER = {
    "sender": (E.GOT_GRANT, E.GOT_REVOKE, E.GOT_RENEW, E.GOT_COMMIT, E.GOT_ACK, E.GOT_ABORT),
    "receiver": (E.GOT_WRITTEN, E.GOT_FINAL, E.GOT_RENEW, E.GOT_REVOKED, E.GOT_ACK, E.GOT_ABORT),
}
ILLEGAL = {
    *((state, E.GOT_COMMIT) for state in (S.UNKNOWN, S.PARKED, S.WAITING, S.GRANTED, S.PUSHING)),  # Final comes first
    *((state, E.GOT_COMMIT) for state in (S.DRAINING, S.ANSWERING)),  # no Final will come
    *((S.CONNECTING, event) for event in (E.GOT_WRITTEN, E.GOT_FINAL)),  # nothing was granted yet
}


@pytest.mark.parametrize("side", SIDES)
def test_messages_may_come_late_or_twice_in_every_state_but_a_few(side):
    messages = {(state, event) for state in states_of(side) for event in FROM_PEER[side]}
    assert messages - set(TABLES[side]) == ILLEGAL & messages


def test_no_message_opens_a_session_that_has_to_be_ended():
    """An unknown one is parked, or refused and remembered as such: it holds nothing."""
    for side, state, event, move in MOVES:
        if state is S.UNKNOWN and event in FROM_PEER[side]:
            assert move.state in {S.UNKNOWN, S.PARKED} | ENDED, (side, event)


def test_in_quarantine_only_the_peers_last_word_or_a_closed_endpoint_changes_anything():
    """Nor does a session that is being fenced come back to life."""
    ends = {"receiver": {E.GOT_ACK, E.GOT_ABORT, E.FENCED}, "sender": {E.FENCED}}
    for side, state, event, move in MOVES:
        if state is S.FENCING and event not in ends[side]:
            assert (move.state, move.actions) == (S.FENCING, ()), (side, event)
        elif state is S.FENCING:
            assert move.state in ENDED, (side, event)


@pytest.mark.parametrize("side", SIDES)
def test_an_abort_is_answered_immediately_or_after_the_puts_in_flight(side):
    """Promise to the peer: an Abort is legal in every state, and leads to an ack wherever no put is in flight."""
    for state in states_of(side):
        move = TABLES[side][state, E.GOT_ABORT]
        assert move.state in (S.ANSWERING, S.FENCING) or Action.SEND_ACK in move.actions, state


def test_blocks_are_free_only_when_no_put_can_read_or_write_them():
    """A sender's after its puts have ended; a receiver's after the peer's word or with a closed endpoint."""
    safe = {E.GOT_ACK, E.GOT_ABORT, E.PEER_DOWN, E.FENCED}
    nothing_granted = {S.UNKNOWN, S.CONNECTING, S.RELEASED, S.REVOKED}
    for side, state, event, move in MOVES:
        if side == "sender" and Action.REPORT_ABORTED in move.actions:
            assert state not in (S.PUSHING, S.DRAINING, S.ANSWERING) or event in (E.DRAINED, E.PEER_DOWN), (
                state,
                event,
            )
        if side == "receiver" and Action.REPORT_RELEASED in move.actions:
            again = state in ENDED and event is E.OFFER  # refused: the blocks of this offer were never granted
            assert event in safe or state in nothing_granted or again, (state, event)


def test_once_a_session_has_ended_it_stays_ended_unless_it_is_offered_again():
    for side, state, event, move in MOVES:
        if state in ENDED and event is not E.OFFER:
            assert move.state is state, (side, state, event)
