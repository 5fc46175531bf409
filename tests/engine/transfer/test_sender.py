"""Calls of a core to the sending side: destinations of blocks, announcements, refusals."""

import pytest
from handoff_pair import BLOCK, BLOCK_BYTES, BLOCKS, HASHES, ROOT, TOKENS, Pair

from legato_engine.transfer.blocks.checksum import ArenaMemory, bind
from legato_engine.transfer.link import PutDone, PutFailed
from legato_engine.transfer.session.events import Aborted, Arrived, Committed, Granted, GrantRevoked
from legato_protocol.wire import handoff

NAME = ("epoch-receiver", 1, 1)


# push


@pytest.mark.parametrize(
    ("first", "blocks", "hashes"),
    [(1, [1], HASHES[1:2]), (0, [0, 1], HASHES[:1]), (0, [0], HASHES[:2])],
    ids=["out of order", "a hash is missing", "a hash too many"],
)
def test_blocks_are_pushed_once_in_order_with_their_hashes_and_not_after_the_end(pair, first, blocks, hashes):
    pair.begin(table=range(5))
    with pytest.raises(ValueError, match="pushed where 0 is next"):
        pair.sender.agent.push(1, first, blocks, hashes)
    pair.push(0, 2)
    with pytest.raises(ValueError, match="blocks from 0 pushed where 2 is next"):
        pair.push(0, 2)
    pair.push(2, 4)
    pair.sender.agent.finish(1, TOKENS, 4 * BLOCK, ())
    with pytest.raises(ValueError, match="blocks from 4 pushed"):
        pair.sender.agent.push(1, 4, [4], [b"h"])
    pair.run()
    assert pair.receiver.events(Arrived)


@pytest.mark.parametrize("cached", [0, 1])
def test_blocks_beyond_the_grant_are_refused_and_those_up_to_its_end_are_not(pair, cached):
    pair.begin(table=range(3), cached=cached)
    with pytest.raises(ValueError, match="blocks 0 to 3 pushed with a grant for 3 blocks"):
        pair.push(0, 4)
    pair.push(0, 3)
    with pytest.raises(ValueError, match="blocks 3 to 3 pushed with a grant for 3 blocks"):
        pair.sender.agent.push(1, 3, [3], HASHES[3:])


@pytest.mark.parametrize("last", [0, 2])
def test_a_push_that_is_empty_or_that_the_receiver_has_altogether_writes_nothing(pair, last):
    pair.begin(cached=2)
    pair.push(0, last)
    assert pair.sender.agent.unwritten(1) == 0
    pair.revoke()
    assert pair.sender.events(GrantRevoked)


def test_blocks_are_counted_until_they_are_written_and_announced_with_the_checksums_of_bytes_and_place(pair):
    pair.begin(cached=1)
    written = pair.sender.sent(handoff.Written)
    pair.sender.agent.push(1, 0, [5, 3, 4], HASHES[:3])
    pair.sender.agent.push(1, 3, [6], HASHES[3:])
    assert pair.sender.agent.unwritten(1) == 3
    pair.run()
    assert (pair.sender.agent.unwritten(1), pair.sender.agent.counts().bytes_sent) == (0, 3 * BLOCK_BYTES)
    sums = ArenaMemory(pair.sender.arena, BLOCKS).sums([3, 4, 6])
    bound = [bind(total, 1, index, HASHES[index]) for index, total in enumerate(sums, 1)]
    assert written == [handoff.Written(*NAME, 1, tuple(bound[:2])), handoff.Written(*NAME, 3, (bound[2],))]


def test_calls_about_a_room_that_is_not_granted_do_nothing(pair):
    pair.expect()
    pair.push(0, 4)
    pair.sender.agent.finish(1, TOKENS, 4 * BLOCK, ())
    assert pair.sender.agent.unwritten(1) == 0
    pair.grant()
    assert pair.arrives()


def test_calls_are_about_the_attempt_that_was_expected_last(pair):
    """The one before it may still hold its grant."""
    pair.begin()
    pair.expect(attempt=2)
    pair.hand_over()
    assert not pair.receiver.events(Arrived)
    pair.grant(table=range(4, 8), attempt=2)
    pair.run()
    pair.hand_over()
    assert [event.attempt for event in pair.receiver.events(Arrived)] == [2]
    assert [event.attempt for event in pair.sender.events(Committed)] == [2]
    counts = pair.sender.agent.counts()
    assert (counts.committed, counts.bytes_sent) == (1, 4 * BLOCK_BYTES)


# finish


@pytest.mark.parametrize(
    ("tokens", "computed", "partial"),
    [
        (TOKENS, 3 * BLOCK, None),
        (TOKENS * 2, 5 * BLOCK, None),
        (TOKENS, 4 * BLOCK, 5),
        (TOKENS * 2, 4 * BLOCK + 1, None),
        (TOKENS[:-4], 4 * BLOCK, None),
    ],
    ids=["a block too few", "a block too many", "no part of a block", "a part is missing", "more than its tokens"],
)
def test_an_end_that_contradicts_what_was_pushed_is_refused(pair, tokens, computed, partial):
    pair.begin(table=range(6))
    pair.push(0, 4)
    with pytest.raises(ValueError, match=f"finished at {computed} tokens with 4 full blocks"):
        pair.sender.agent.finish(1, tokens, computed, (), partial)
    pair.sender.agent.finish(1, TOKENS, 4 * BLOCK, ())
    pair.run()
    assert pair.receiver.events(Arrived)


def test_a_sequence_that_the_receiver_has_already_needs_no_put(pair):
    pair.begin(cached=4)
    pair.hand_over()
    (arrived,) = pair.receiver.events(Arrived)
    assert (arrived.blocks, arrived.cached, arrived.bytes, pair.sender.agent.counts().bytes_sent) == (0, 4, 0, 0)


def test_the_last_message_waits_for_every_put_and_has_the_seconds_that_took(pair):
    pair.begin()
    pair.network.faults.delay = 0.4
    pair.network.random.uniform = lambda low, high: high
    finals = pair.sender.sent(handoff.Final)
    pair.send()
    pair.sender.poll()
    assert finals == []
    pair.run(1.5)
    assert len(finals) == 1
    (arrived,) = pair.receiver.events(Arrived)
    assert arrived.final.held == pytest.approx(0.4, abs=0.06)
    assert arrived.seconds > 0.8
    assert arrived.source == "sender"


# grants


@pytest.mark.parametrize("known", [False, True])
def test_a_revocation_is_answered_where_there_is_no_grant(pair, known):
    pair.connect()
    revoked = pair.sender.sent(handoff.Revoked)
    if known:
        pair.expect()
    pair.say(pair.receiver, handoff.Revoke(*NAME, 3), 0.2)
    pair.say(pair.receiver, handoff.Revoke(*NAME, 2), 0.2)
    assert revoked == [handoff.Revoked(*NAME, 3)] * 2
    assert not pair.sender.events(GrantRevoked)


@pytest.mark.parametrize("expected", [False, True])
def test_a_grant_can_be_taken_back_while_it_is_parked_and_when_it_is_expected_then(pair, expected):
    revoked = pair.sender.sent(handoff.Revoked)
    pair.grant()
    pair.run()
    if expected:
        pair.expect()
    pair.revoke()
    assert revoked == [handoff.Revoked(*NAME, 1)]
    assert pair.receiver.events(GrantRevoked)
    assert pair.sender.seen == ([Granted(1, 1, 4, 0), GrantRevoked("sender", 1, 1)] if expected else [])
    if not expected:
        pair.expect()
        pair.run()
        assert not pair.sender.events(Granted)


def test_a_tombstone_refuses_a_grant_and_answers_its_revocation(pair):
    pair.expect()
    pair.sender.agent.abort(1, "the client is gone")
    pair.run()
    pair.grant()
    pair.run()
    (aborted,) = pair.receiver.events(Aborted)
    assert (aborted.cause, aborted.reason, aborted.wanted) == ("refused", "the client is gone", False)
    revoked = pair.sender.sent(handoff.Revoked)
    pair.say(pair.receiver, handoff.Revoke(*NAME, 4))
    assert revoked == [handoff.Revoked(*NAME, 4)]


def test_a_leftover_of_an_old_connection_to_the_same_worker_changes_nothing(pair):
    pair.begin()
    peers, sender = pair.sender.agent._peers, pair.sender.agent._sender
    (number,) = peers._connections
    peers._connections[50] = peers._connections[number]
    for message in (handoff.Abort(*NAME, "no"), handoff.Revoke(*NAME, 1)):
        sender.receive(50, message)
    pair.run(0.1)
    assert pair.sender.events(Aborted) == pair.sender.events(GrantRevoked) == []
    assert pair.arrives()


def test_a_parked_grant_waits_for_a_lease_only(pair):
    pair.connect()
    aborts = pair.sender.sent(handoff.Abort)
    pair.say(pair.receiver, handoff.Grant(*NAME, (0,), 0, 1.0, 9), 0.9)
    assert [message.room for message in aborts if message.room == 1] == []
    pair.run(0.3)
    assert handoff.Abort(*NAME, "the receiver was silent for too long", True) in aborts
    assert pair.sender.seen == [], "no core has asked for room 1"


# puts that end


def test_a_put_that_fails_ends_the_session_once_no_other_is_in_flight(pair):
    pair.begin()
    aborts = pair.sender.sent(handoff.Abort)
    pair.push(0, 1)
    pair.push(1, 2)
    out = pair.sender.agent._sender
    out.on_put_ended(PutFailed(1, 1, "the cable"))
    pair.sender.poll()
    assert not pair.sender.events(Aborted)
    out.on_put_ended(PutDone(1, 2))
    pair.sender.poll()
    (aborted,) = pair.sender.events(Aborted)
    assert (aborted.cause, aborted.reason, aborted.wanted) == ("broken", "could not write: the cable", True)
    assert aborts == [handoff.Abort(*NAME, "could not write: the cable", True)]
    out.on_put_ended(PutDone(1, 2))  # of nobody
    pair.run()
    assert pair.sender.agent.counts().bytes_sent == 0


@pytest.mark.parametrize("checksum", [False, True])
def test_without_checksums_no_sum_is_taken(checksum):
    pair = Pair(checksum=checksum)
    pair.begin()
    pair.network.faults.corrupt_put = 1.0
    pair.hand_over()
    assert bool(pair.receiver.events(Arrived)) == (not checksum)


def test_an_integrity_check_finds_a_block_that_is_granted_twice_or_nowhere(pair):
    pair.grant(table=[0, 1])
    pair.receiver.agent.grant(2, 1, pair.sender.peer, [1, 2], 0, ROOT)
    with pytest.raises(AssertionError, match="in two sessions"):
        pair.receiver.agent.check_integrity()
    (first, second) = pair.receiver.agent._receiver.sessions
    for wrong in (BLOCKS, -1):
        second.blocks = (2, wrong)
        with pytest.raises(AssertionError, match="not in the arena"):
            pair.receiver.agent.check_integrity()
    second.blocks = (2, BLOCKS - 1)
    pair.receiver.agent.check_integrity()
    assert first.blocks == (0, 1)
