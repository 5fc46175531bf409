"""Grants, counts and answers of the receiving side."""

import dataclasses

import pytest
from handoff_pair import BLOCK, BLOCK_BYTES, ROOT, TOKENS

from legato_engine.transfer.device.interface import POLL_INTERVAL
from legato_engine.transfer.fakes.late_device import LateEvent
from legato_engine.transfer.session.events import Aborted, Arrived, Granted, GrantRevoked, Released, WritingBegan
from legato_engine.transfer.session.lifecycle import SessionState
from legato_protocol.wire import handoff

NAME = ("epoch-receiver", 1, 1)
FINAL = handoff.Final(*NAME, TOKENS, 4 * BLOCK, (), 4)


def test_each_grant_has_a_serial_of_its_own(pair):
    grants = pair.receiver.sent(handoff.Grant)
    pair.begin(table=[6, 1, 4, 2, 5], cached=1)
    pair.revoke()
    pair.grant(table=[0])
    pair.run()
    assert grants == [handoff.Grant(*NAME, (1, 4, 2, 5), 1, 1.0, 1), handoff.Grant(*NAME, (0,), 0, 1.0, 2)]


def test_a_grant_waits_for_steps_that_may_write_to_its_blocks(pair):
    """Blocks that a sequence gave up are granted at once, while its last step is still under way on the device."""
    event = LateEvent()
    pair.receiver.agent.after_step(event)
    pair.begin()
    assert not pair.sender.events(Granted)
    assert pair.receiver.agent.next_timer() == POLL_INTERVAL
    event.passed = True
    pair.run()
    assert pair.sender.events(Granted)


def test_a_revocation_names_the_grant_that_is_meant(pair):
    pair.connect()
    revokes = pair.receiver.sent(handoff.Revoke)
    pair.begin()
    pair.receiver.agent.revoke(1)
    pair.receiver.agent.revoke(1)
    assert revokes == [handoff.Revoke(*NAME, 2)]


def test_a_grant_that_was_not_sent_yet_is_revoked_at_once(pair):
    pair.grant()
    pair.receiver.agent.revoke(1)
    assert pair.receiver.agent.poll() == [GrantRevoked("receiver", 1, 1)]
    pair.receiver.agent.revoke(2)  # a room that is not known
    pair.run()
    assert pair.sender.agent.pending() == 0


@pytest.mark.parametrize("stopped", [False, True], ids=["aborted", "silent"])
def test_only_blocks_that_may_still_be_written_to_are_in_quarantine(pair, stopped):
    counts = pair.receiver.agent.counts
    pair.begin(cached=1)
    assert (counts().receiving, counts().quarantined_blocks) == (1, 0)
    if stopped:
        pair.sender.link.stop()
        pair.wait(lambda: counts().fences)
    else:
        pair.receiver.agent.abort(1, "the client is gone")
        pair.receiver.poll()
    assert (counts().receiving, counts().quarantined_blocks) == (1, 3)
    assert (len(pair.receiver.events(Aborted)), pair.receiver.events(Released)) == (1, [])
    pair.run()
    assert pair.receiver.events(Released)
    assert (counts().receiving, counts().quarantined_blocks) == (0, 0)


@pytest.mark.parametrize("message", [handoff.Written(*NAME, 0, (1,)), FINAL, handoff.Renew(*NAME)])
def test_a_session_that_is_not_known_is_aborted_and_stays_so(pair, message):
    pair.connect()
    aborts = pair.receiver.sent(handoff.Abort)
    for _ in range(2):
        pair.say(pair.sender, message, 0.1)
    assert aborts == [handoff.Abort(*NAME, "unknown here", True)] * 2
    assert pair.receiver.seen == []
    pair.grant()
    assert [type(event) for event in pair.receiver.agent.poll()] == [Aborted, Released]


def test_a_session_that_was_released_sends_its_reason_again(pair):
    pair.begin()
    pair.receiver.agent.abort(1, "the client is gone")
    pair.run()
    aborts = pair.receiver.sent(handoff.Abort)
    pair.say(pair.sender, handoff.Written(*NAME, 0, (1,)), 0.1)
    assert aborts == [handoff.Abort(*NAME, "the client is gone", True)]
    assert pair.receiver.agent.counts().committed == 0


def test_a_commit_that_was_lost_is_sent_again(pair):
    pair.begin()
    commits = pair.receiver.sent(handoff.Commit)
    pair.hand_over()
    pair.say(pair.sender, FINAL, 0.1)
    assert commits == [handoff.Commit(*NAME)] * 2
    assert len(pair.receiver.events(Arrived)) == 1
    assert pair.receiver.agent.counts().committed == 1


@pytest.mark.parametrize("message", [handoff.Abort(*NAME, "no", False), handoff.Abort(*NAME, "no", True)])
def test_an_abort_is_acknowledged_and_says_whether_to_try_again(pair, message):
    pair.begin()
    acks = pair.receiver.sent(handoff.AbortAck)
    for _ in range(2):
        pair.say(pair.sender, message, 0.1)
    assert acks == [handoff.AbortAck(*NAME)] * 2
    assert pair.receiver.seen == [Aborted("receiver", 1, 1, "refused", "no", message.wanted), Released(1, 1)]


def test_an_abort_of_a_room_that_is_not_known_is_acknowledged_and_remembered(pair):
    pair.connect()
    acks = pair.receiver.sent(handoff.AbortAck)
    pending = pair.receiver.agent.pending()
    pair.say(pair.sender, handoff.Abort(*NAME, "no"), 0.1)
    assert acks == [handoff.AbortAck(*NAME)]
    assert (pair.receiver.agent.pending(), pair.receiver.seen) == (pending, [])
    pair.grant(table=range(4))
    assert pair.receiver.agent.poll() == [Aborted("receiver", 1, 1, "refused", "no", True), Released(1, 1)]


def test_writing_is_reported_once_and_cannot_be_revoked(pair):
    pair.begin()
    pair.push(0, 1)
    pair.push(1, 2)
    pair.revoke()
    assert pair.receiver.seen == [WritingBegan(1, 1)]


def test_the_last_message_may_come_before_the_blocks_are_announced(pair):
    """It waits for them a lease long, from then on."""
    pair.begin()
    pair.sender.link.stop()
    pair.run(0.4)
    assert not pair.receiver.events(Aborted)
    pair.sender.link.resume()
    pair.sender.say(FINAL, pair.receiver)
    pair.deliver()
    pair.receiver.poll()
    pair.sender.link.stop()
    began = pair.network.now
    pair.wait(lambda: pair.receiver.events(Aborted))
    assert pair.network.now - began == pytest.approx(1.0, abs=0.06)
    assert not pair.receiver.events(Arrived)


def test_any_message_of_the_sender_starts_its_lease_over(pair):
    pair.begin()
    for _ in range(5):
        pair.sender.link.resume()
        pair.sender.say(handoff.Renew(*NAME), pair.receiver)
        pair.deliver()
        pair.sender.link.stop()
        pair.run(0.75)
    assert not pair.receiver.events(Aborted)
    pair.run(0.5)
    assert pair.receiver.events(Aborted)


def test_what_arrived_is_told_with_its_figures(pair):
    pair.sender.agent.expect(1, 1, pair.receiver.peer, ROOT)
    began = pair.network.now
    pair.grant(table=[6, 1, 4, 2], cached=1)
    pair.run(3.1)
    pair.hand_over()
    (arrived,) = pair.receiver.events(Arrived)
    assert (arrived.room, arrived.attempt, arrived.source) == (1, 1, "sender")
    assert (arrived.blocks, arrived.cached, arrived.bytes) == (3, 1, 3 * BLOCK_BYTES)
    assert arrived.final_at == pytest.approx(began + arrived.seconds, abs=0.01)
    assert arrived.seconds > 3.0
    counts = pair.receiver.agent.counts()
    figures = (counts.committed, counts.bytes_received, counts.aborted, counts.corrupt_blocks)
    assert figures == (1, 3 * BLOCK_BYTES, 0, 0)


def test_a_connection_that_is_ready_sends_only_the_grants_that_go_over_it(pair):
    stranger_peer = type(pair.sender.peer)("nobody", "e", b"nobody")
    pair.receiver.agent.grant(2, 1, stranger_peer, [4], 0, ROOT)
    grants = pair.receiver.sent(handoff.Grant)
    pair.expect()
    pair.grant(table=range(4))
    pair.run(0.2)
    assert [grant.room for grant in grants] == [1]


def test_the_expected_sender_may_refuse_before_the_grant_has_reached_it(pair):
    """Over a connection of its own, while another one to it is being made."""
    pair.connect()
    peers, sessions = pair.receiver.agent._peers, pair.receiver.agent._receiver.sessions
    (number,) = peers._connections
    peers._connections[50] = dataclasses.replace(peers._connections[number], trusted=False)
    peers.reach = lambda _: 50
    pair.grant(table=range(4))
    assert sessions.get((1, 1)).state is SessionState.CONNECTING
    pair.say(pair.sender, handoff.Written(*NAME, 0, (1,)), 0.1)
    assert pair.receiver.seen == []
    pair.say(pair.sender, handoff.Abort(*NAME, "no"), 0.1)
    assert [type(event) for event in pair.receiver.seen] == [Aborted, Released]
