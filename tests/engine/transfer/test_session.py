"""The session table: complete where it must be, and the only truth that docs and code share."""

import pytest

from legato_engine.transfer.session import (
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


def states_of(side):
    return {state for state, _ in TABLES[side]} | {move.state for move in TABLES[side].values()}


@pytest.mark.parametrize("side", SIDES)
def test_what_is_not_in_the_table_raises_and_changes_nothing(side):
    """What is, and has to be, is tried with the code that drives it: see test_sides."""
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
    moves = {}
    for (state, _), move in TABLES[side].items():
        moves.setdefault(state, set()).add(move.state)
    reached, edge = {S.UNKNOWN}, [S.UNKNOWN]
    while edge:
        for state in moves[edge.pop()] - reached:
            reached.add(state)
            edge.append(state)
    assert reached == states_of(side)
    for state in reached - ENDED:
        seen, edge = {state}, [state]
        while edge:
            for after in moves[edge.pop()] - seen:
                seen.add(after)
                edge.append(after)
        assert seen & ENDED, f"{state} cannot end"


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
    """What is not known is parked, or refused and remembered as such: it holds nothing."""
    for side in SIDES:
        for event in FROM_PEER[side]:
            transition = TABLES[side].get((S.UNKNOWN, event))
            assert transition is None or transition.state in {S.UNKNOWN, S.PARKED} | ENDED, (side, event)


@pytest.mark.parametrize("side", SIDES)
def test_in_quarantine_only_the_peers_last_word_or_a_closed_endpoint_changes_anything(side):
    """Nor does a session that is being fenced come back to life."""
    ends = {E.GOT_ACK, E.GOT_ABORT, E.FENCED} if side == "receiver" else {E.FENCED}
    for (state, event), transition in TABLES[side].items():
        if state is S.FENCING and event not in ends:
            assert (transition.state, transition.actions) == (S.FENCING, ()), event
        elif state is S.FENCING:
            assert transition.state in ENDED, event


@pytest.mark.parametrize("side", SIDES)
def test_an_abort_is_answered_at_once_or_after_the_puts_in_flight(side):
    """Promise to the peer: an Abort is legal in every state, and leads to an ack wherever no put is in flight."""
    for state in states_of(side):
        move = TABLES[side][state, E.GOT_ABORT]
        waits = move.state in (S.ANSWERING, S.FENCING)
        assert waits or Action.SEND_ACK in move.actions, state


def test_a_sender_tells_its_core_that_blocks_are_free_only_when_no_put_can_read_them():
    for (state, event), move in TABLES["sender"].items():
        if Action.REPORT_ABORTED in move.actions and state in (S.PUSHING, S.DRAINING, S.ANSWERING):
            assert event in (E.DRAINED, E.PEER_DOWN), (state, event)


def test_a_receiver_releases_blocks_only_after_the_peers_word_or_a_closed_endpoint():
    safe = {E.GOT_ACK, E.GOT_ABORT, E.PEER_DOWN, E.FENCED}
    nothing_granted = {S.UNKNOWN, S.CONNECTING, S.RELEASED, S.REVOKED}
    for (state, event), move in TABLES["receiver"].items():
        if Action.REPORT_RELEASED in move.actions:
            again = state in ENDED and event is E.OFFER  # refused: the blocks of this offer were never granted
            assert event in safe or state in nothing_granted or again, (state, event)


def test_once_a_session_has_ended_it_stays_ended_unless_it_is_offered_again():
    for side in SIDES:
        for (state, event), move in TABLES[side].items():
            if state in ENDED and event is not E.OFFER:
                assert move.state is state, (side, state, event)
