"""Parts that both sides of a hand-off share: leases, tombstones and their memory, ends of connections."""

import pytest

from legato_engine.transfer.fakes.virtual_time import VirtualTime
from legato_engine.transfer.session.context import TransferContext
from legato_engine.transfer.session.events import Aborted, GrantRevoked
from legato_engine.transfer.session.lifecycle import (
    ENDED,
    TABLES,
    Action,
    IllegalSessionEvent,
    SessionEvent,
    SessionState,
)
from legato_engine.transfer.session.registry import SessionFailure, SessionRecord, SessionRegistry
from legato_protocol.wire import handoff

S, E = SessionState, SessionEvent
LEASE = 8.0
KEY, NAME = (5, 1), ("e", 5, 1)
RENEWED = {"sender": {S.GRANTED, S.PUSHING}, "receiver": {S.OFFERED, S.REVOKING, S.RECEIVING}}
LEASED = {
    "sender": RENEWED["sender"] | {S.PARKED, S.FINISHED, S.DRAINING, S.ANSWERING},
    "receiver": RENEWED["receiver"] | {S.CONNECTING, S.VERIFYING, S.ABORTING},
}
TIMELESS = (S.WAITING, S.FENCING)
SIDES = ("sender", "receiver")
EVERY = [
    pytest.param(side, state, id=f"{side}-{state.value}")
    for side in SIDES
    for state in sorted({state for state, _ in TABLES[side]}, key=lambda state: state.value)
]


class Wire:
    """In place of `Peers`: what was sent over which connection, and which ones were fenced."""

    def __init__(self):
        self.sent = []
        self.fenced = []

    def send(self, connection, message):
        self.sent.append((connection, message))

    def fence(self, connection):
        again = connection in self.fenced
        self.fenced.append(connection)
        return not again


class World:
    def __init__(self, side, state=None):
        self.time, self.wire, self.performed = VirtualTime(), Wire(), []
        self.context = TransferContext(None, self.wire, None, 4, "e", True, LEASE, self.time.clock)
        self.registry = SessionRegistry(side, self.context, SessionRecord, self.perform)
        if state is not None:
            self.record = self.in_state(KEY, state)

    def in_state(self, key, state, connection=1):
        record = self.registry.open(key)
        record.session.state, record.connection, record.epoch, record.due = state, connection, "e", LEASE
        return record

    def perform(self, record, action):
        self.performed.append(action)

    def at(self, now):
        self.time.run(now)
        self.registry.tick(now)

    def timers(self):
        return list(self.registry.timers())


# leases


@pytest.mark.parametrize(("side", "state"), EVERY)
def test_a_lease_ends_when_it_is_due_and_not_before(side, state):
    world = World(side, state)
    world.record.renew_at = 2 * LEASE
    assert world.timers() == ([] if state in TIMELESS else [LEASE])
    world.at(LEASE - 0.001)
    assert world.record.state is state
    world.at(LEASE)
    assert (world.record.state is not state) == (state in LEASED[side])


@pytest.mark.parametrize("side", SIDES)
def test_a_lease_that_ends_is_reported_as_silence_of_the_other_side(side):
    world = World(side, S.PUSHING if side == "sender" else S.RECEIVING)
    world.in_state((6, 1), world.record.state)
    world.at(LEASE)
    other = {"sender": "receiver", "receiver": "sender"}[side]
    assert world.record.failure == SessionFailure("peer_silent", f"the {other} was silent for too long", wanted=True)
    assert (world.wire.fenced, world.context.totals.fences) == ([1, 1], 1), "a connection is counted once"


@pytest.mark.parametrize(("side", "state"), EVERY)
def test_a_session_under_way_is_renewed_four_times_in_a_lease(side, state):
    world = World(side, state)
    world.registry.begin_lease(world.record)
    world.at(LEASE / 4 - 0.001)
    assert world.wire.sent == []
    renewed = state in RENEWED[side]
    assert world.record.renewed == renewed
    if renewed:
        assert world.timers() == [LEASE / 4]
    world.at(LEASE / 4)
    world.at(LEASE / 4)
    assert world.wire.sent == [(1, handoff.Renew(*NAME))] * renewed
    if renewed:
        assert world.timers() == [LEASE / 2]
        world.record.due = LEASE / 3
        assert world.timers() == [LEASE / 3]


def test_a_lease_begins_and_is_extended_from_now_on_and_not_by_an_event_that_changes_no_state():
    world = World("receiver", S.RECEIVING)
    world.time.run(3.0)
    world.registry.step(world.record, E.GOT_WRITTEN)
    assert world.record.due == LEASE
    world.registry.begin_lease(world.record)
    assert (world.record.due, world.record.renew_at) == (3.0 + LEASE, 3.0 + LEASE / 4)
    world.time.run(5.0)
    world.registry.extend_lease(world.record)
    assert (world.record.due, world.record.renew_at) == (5.0 + LEASE, 3.0 + LEASE / 4)


@pytest.mark.parametrize(
    ("side", "state", "event", "after"),
    [
        ("sender", S.PUSHING, E.CANCEL, S.DRAINING),
        ("sender", S.PUSHING, E.GOT_ABORT, S.ANSWERING),
        ("receiver", S.RECEIVING, E.CORRUPT, S.ABORTING),
    ],
)
def test_a_session_that_gives_up_has_one_more_lease_to_end(side, state, event, after):
    world = World(side, state)
    world.time.run(5.0)
    world.registry.step(world.record, event)
    assert world.record.state is after
    assert world.record.due == 5.0 + LEASE
    world.time.run(7.0)
    world.registry.step(world.record, E.GOT_ABORT if side == "sender" else E.CANCEL)
    assert world.record.due == 5.0 + LEASE, "and no more, whatever comes"


# the end


@pytest.mark.parametrize(("side", "state"), EVERY)
def test_the_end_of_a_connection_ends_its_sessions_and_no_others(side, state):
    if state in (S.UNKNOWN, S.WAITING):
        return  # they have no connection
    world = World(side, state)
    other = world.in_state((6, 1), state, connection=2)
    world.time.run(3.0)
    world.registry.end_connection(1, "peer_died", "killed")
    assert world.record.ended
    assert other.state is state
    if state in ENDED:
        assert world.record.failure is None
        assert world.record.due == LEASE
    else:
        name = {"sender": "receiver", "receiver": "sender"}[side]
        assert world.record.failure == SessionFailure("peer_died", f"the {name} is gone: killed", wanted=True)
        assert world.record.due == 3.0 + 4 * LEASE


LAST = {
    S.COMMITTED: ("sender", S.FINISHED, E.GOT_COMMIT),
    S.ABORTED: ("sender", S.GRANTED, E.CANCEL),
    S.RELEASED: ("receiver", S.ABORTING, E.GOT_ACK),
    S.REVOKED: ("receiver", S.REVOKING, E.GOT_REVOKED),
    S.UNKNOWN: ("sender", None, None),
}


@pytest.mark.parametrize("state", LAST, ids=lambda state: state.value)
def test_a_session_that_has_ended_or_was_only_asked_for_is_remembered_for_four_leases(state):
    side, before, event = LAST[state]
    world = World(side, before)
    world.time.run(1.0)
    if event is None:
        world.record = world.registry.open(KEY)
    else:
        world.registry.step(world.record, event)
        world.time.run(2.0)
        world.registry.step(world.record, E.GOT_ACK)  # late, and no reason to remember it longer
    assert world.record.state is state
    assert world.timers() == [1.0 + 4 * LEASE]
    world.at(1.0 + 4 * LEASE - 0.001)
    assert world.registry.get(KEY) is world.record
    world.at(1.0 + 4 * LEASE)
    assert world.registry.get(KEY) is None
    assert list(world.registry) == world.registry.in_room(5) == world.timers() == []


@pytest.mark.parametrize(("side", "state"), EVERY)
def test_who_is_waited_for(side, state):
    world = World(side, state)
    idle = state in (S.UNKNOWN, S.PARKED) or state in ENDED
    assert world.registry.active() == ([] if idle else [world.record])


# what is told


def test_the_first_failure_is_the_one_that_is_reported():
    world = World("sender", S.PUSHING)
    world.registry.fail(world.record, E.PUT_FAILED, SessionFailure("broken", "the first"))
    world.registry.fail(world.record, E.GOT_ABORT, SessionFailure("refused", "the second", wanted=False))
    world.registry.step(world.record, E.DRAINED)
    assert world.context.outbox == [Aborted("sender", 5, 1, "broken", "the first", True)]
    assert world.wire.sent == [(1, handoff.AbortAck(*NAME))]
    assert world.context.totals.aborted == 1


def test_the_cores_own_reason_is_reported_and_a_revocation_names_its_side():
    world = World("receiver", S.OFFERED)
    world.registry.fail(world.record, E.CANCEL, SessionFailure("cancelled", "the client is gone", wanted=False))
    other = world.in_state((6, 1), S.REVOKING)
    world.registry.step(other, E.GOT_REVOKED)
    aborted = Aborted("receiver", 5, 1, "cancelled", "the client is gone", False)
    assert world.context.outbox == [aborted, GrantRevoked("receiver", 6, 1)]
    assert world.performed == [Action.SEND_ABORT]


def test_nothing_is_sent_without_a_connection_and_an_illegal_event_changes_nothing():
    world = World("receiver", S.OFFERED)
    world.record.connection = None
    world.registry.send(world.record, handoff.Renew(*NAME))
    assert world.wire.sent == []
    with pytest.raises(IllegalSessionEvent):
        world.registry.step(world.record, E.VERIFIED)
    assert (world.record.state, world.record.due, world.performed) == (S.OFFERED, LEASE, [])
