"""Both sides of the session table as they are driven: whatever a core calls and a link tells, in whatever state, is a
legal move, and ends the session where it has to."""

import pytest
import torch

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.blocks.puts import BlockPut
from legato_engine.transfer.connections.peers import Peers
from legato_engine.transfer.fakes.memory import MemoryLink, Network
from legato_engine.transfer.link import PutDone, PutFailed
from legato_engine.transfer.session.context import TransferContext
from legato_engine.transfer.session.incoming import IncomingSession
from legato_engine.transfer.session.lifecycle import ENDED, TABLES, Session, SessionState
from legato_engine.transfer.session.receiver import Receiver
from legato_engine.transfer.session.registry import SessionFailure
from legato_engine.transfer.session.sender import OutgoingSession, Sender
from legato_protocol.wire import handoff
from legato_protocol.wire.stream import Peer

S = SessionState
KEY, ROOM, ATTEMPT, CONNECTION, TAG = (5, 1), 5, 1, 1, 9
PEER = Peer("other", "e2", b"other")
IN_FLIGHT = (S.PUSHING, S.DRAINING, S.ANSWERING, S.FENCING)


def states_of(side):
    return sorted({state for state, _ in TABLES[side]}, key=lambda state: state.value)


def context():
    arena = torch.zeros(4 * 64, dtype=torch.uint8)
    network = Network()
    link = MemoryLink(network, "own", arena.data_ptr(), arena.numel())
    hello = handoff.PeerHello("own", "e1", "kv", "tiny", link.address, arena.data_ptr(), link.rkey, b"")
    peers = Peers(link, hello, "t", 10.0, network.clock)
    assert peers.reach(PEER) == CONNECTION
    return TransferContext(link, peers, ArenaMemory(arena, 4), 4, "e1", True, 1.0, network.clock)


def session_in(side, state):
    session = Session(side)
    session.state = state
    return session


def sender_in(state, flying):
    """With a put in flight where there can be one."""
    sender, session = Sender(context()), session_in("sender", state)
    out = OutgoingSession(KEY, session, "e2", None, peer=PEER, current=True)
    if state not in (S.UNKNOWN, S.WAITING):
        out.connection, out.grant = CONNECTION, handoff.Grant("e2", ROOM, ATTEMPT, (0, 1), 0, 1.0, 1)
    if state in (S.DRAINING, S.ANSWERING):
        out.failure = SessionFailure("broken", "a put failed")
    if state is S.FINISHED:
        out.final = handoff.Final("e2", ROOM, ATTEMPT, b"", 0, (), 0)
    if flying:
        out.puts[TAG] = BlockPut(TAG, CONNECTION, 0, [0], [b"h"], [0], 0, sums=[1])
        sender._by_tag[TAG] = out
    sender.sessions._rooms[ROOM] = {ATTEMPT: out}
    return sender, session


def receiver_in(state, flying=False):
    receiver, session = Receiver(context()), session_in("receiver", state)
    receiver.sessions._rooms[ROOM] = {ATTEMPT: IncomingSession(KEY, session, "e1", CONNECTION, blocks=(0, 1), serial=1)}
    return receiver, session


BOTH = {
    "cancel": lambda side: side.cancel(ROOM, "cancelled"),
    "lease end": lambda side: side.sessions.tick(1e9),
    "renewal": lambda side: side.sessions.tick(0.0),
    "peer down": lambda side: side.sessions.end_connection(CONNECTION, "peer_died", "gone"),
    "device done": lambda side: side.advance(),
}
CALLS = {
    sender_in: BOTH
    | {
        "put done": lambda sender: sender.on_put_ended(PutDone(CONNECTION, TAG)),
        "put failed": lambda sender: sender.on_put_ended(PutFailed(CONNECTION, TAG, "broken")),
        "push": lambda sender: sender.push(ROOM, 0, [0], [b"h"]),
        "finish": lambda sender: sender.finish(ROOM, b"", 0, (), None),
    },
    receiver_in: BOTH | {"revoke": lambda receiver: receiver.revoke(ROOM)},
}
CASES = [
    pytest.param(side_in, state, call, id=f"{name}-{state.value}-{call}")
    for side_in, name in ((sender_in, "sender"), (receiver_in, "receiver"))
    for state in states_of(name)
    for call in CALLS[side_in]
    if (name, state) != ("receiver", S.UNKNOWN)  # it keeps no session that has not begun
]


@pytest.mark.parametrize(("side_in", "state", "call"), CASES)
def test_every_call_and_event_is_legal_in_every_state(side_in, state, call):
    for flying in {False, side_in is sender_in and state in IN_FLIGHT}:
        if flying and call == "peer down":
            continue  # a link reports the end of every put first
        if state in (S.PUSHING, S.DRAINING, S.ANSWERING) and call == "put failed" and not flying:
            continue
        side, session = side_in(state, flying)
        CALLS[side_in][call](side)
        side.check_integrity()
        if call == "peer down" and (side_in is receiver_in or state not in (S.UNKNOWN, S.WAITING)):
            assert session.ended
        if state in ENDED:
            assert session.state is state


@pytest.mark.parametrize("state", [S.UNKNOWN, S.PARKED, *(s for s in states_of("sender") if s in ENDED)])
def test_a_room_that_a_sender_does_not_serve_may_be_expected(state):
    sender, session = sender_in(state, False)
    sender.expect(ROOM, ATTEMPT, PEER, b"root")
    assert sender.sessions.get(KEY).session.state is not S.UNKNOWN
    assert session.state is state or state not in ENDED


@pytest.mark.parametrize("state", [S.UNKNOWN, *(s for s in states_of("receiver") if s in ENDED)])
def test_a_room_that_a_receiver_does_not_serve_may_be_offered(state):
    receiver, session = receiver_in(state)
    receiver.grant(ROOM, ATTEMPT, PEER, [2, 3], 0, b"root")
    now = receiver.sessions.get(KEY).session
    assert now.state is S.CONNECTING if state in (S.UNKNOWN, S.REVOKED) else now is session


STRAYS = [handoff.AbortAck("e1", ROOM, ATTEMPT), handoff.Revoked("e1", ROOM, ATTEMPT, 1)]


@pytest.mark.parametrize("message", STRAYS, ids=lambda message: type(message).__name__)
def test_a_stray_message_that_changes_nothing_leaves_nothing(message):
    receiver = Receiver(context())
    receiver.receive(CONNECTION, message)
    receiver.cancel(ROOM, "cancelled")
    receiver.sessions.end_connection(CONNECTION, "peer_died", "gone")
    assert list(receiver.sessions.timers()) == []
