"""What a session does not believe: messages that are stale, of another worker, or contradict the grant."""

import pytest
from handoff_pair import BLOCK, HASHES, TOKENS, Stranger

from legato_engine.transfer.events import Aborted, Arrived, Committed, Granted, GrantRevoked, Released, WritingBegan
from legato_protocol import handoff

NAME = ("epoch-receiver", 1, 1)  # how messages of room 1 begin: the epoch is the receiver's


def arrives(pair):
    """Whether the hand-off of room 1 still comes to a good end."""
    pair.run()
    pair.hand_over()
    return len(pair.receiver.events(Arrived)) == len(pair.sender.events(Committed)) == 1


# a receiver


def test_a_stale_revoked_frees_no_blocks(pair):
    """It answers the first grant; the second one of the same attempt is in force, and is asked back as well."""
    pair.begin()
    pair.receiver.agent.revoke(1)
    pair.run()
    pair.grant()
    pair.run()
    assert len(pair.receiver.events(GrantRevoked)) == 1
    pair.receiver.agent.revoke(1)
    pair.sender.say(handoff.Revoked(*NAME, 1), pair.receiver)
    pair.deliver()
    pair.receiver.poll()
    assert len(pair.receiver.events(GrantRevoked)) == 1
    pair.run()
    assert len(pair.receiver.events(GrantRevoked)) == 2


def test_a_stale_revoked_does_not_take_the_blocks_from_a_grant_that_is_in_force(pair):
    pair.begin()
    pair.receiver.agent.revoke(1)
    pair.run()
    pair.grant()
    pair.sender.say(handoff.Revoked(*NAME, 1), pair.receiver)
    assert arrives(pair)


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 3), (1, 5), (5, 1)])
def test_blocks_that_were_not_granted_are_refused_as_corrupt(pair, first, count):
    """Of 5 blocks the receiver has the first: it granted those from 1 to 4."""
    pair.begin(table=[6, 1, 4, 2, 7], cached=1)
    pair.say(pair.sender, handoff.Written(*NAME, first, tuple(range(count))))
    (aborted,) = pair.receiver.events(Aborted)
    assert (aborted.cause, aborted.retry) == ("corrupt", True)
    assert "not granted" in aborted.reason


def test_all_blocks_of_a_grant_may_be_announced(pair):
    pair.begin(table=[6, 1, 4, 2, 7], cached=1)
    pair.say(pair.sender, handoff.Written(*NAME, 1, (0, 0, 0, 0)))
    assert pair.receiver.seen == [WritingBegan(1, 1)]


FINAL = {"token_ids": TOKENS, "computed": 4 * BLOCK, "tokens": (), "blocks": 4}
CONTRADICTIONS = {
    "more blocks than its tokens fill": {"blocks": 5},
    "fewer blocks than its tokens fill": {"blocks": 3},
    "more tokens computed than told": {"computed": 4 * BLOCK + 1, "blocks": 5},
    "beyond the grant": {"token_ids": TOKENS * 2, "computed": 4 * BLOCK + 1, "blocks": 5},
    "fewer than no tokens": {"computed": -BLOCK, "blocks": -1},
}


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_last_message_that_contradicts_itself_or_the_grant_is_refused_as_corrupt(pair, change):
    pair.begin()
    pair.say(pair.sender, handoff.Final(*NAME, **{**FINAL, **change}))
    (aborted,) = pair.receiver.events(Aborted)
    assert (aborted.cause, aborted.retry) == ("corrupt", True)
    assert "contradicts" in aborted.reason
    assert pair.receiver.agent.counts().corrupt_blocks == 0


def test_every_corrupt_block_is_counted_once(pair):
    """Two of four."""
    pair.begin()
    for block in range(4):
        pair.network.faults.corrupt_put = float(block % 2)
        pair.sender.agent.push(1, block, [block], HASHES[block : block + 1])
        pair.run(0.1)
    pair.sender.agent.finish(1, TOKENS, 4 * BLOCK, ())
    pair.run()
    (aborted,) = pair.receiver.events(Aborted)
    assert aborted.cause == "corrupt"
    assert aborted.reason.startswith("2 of 4 blocks")
    counts = pair.receiver.agent.counts()
    assert (counts.corrupt_blocks, counts.aborted, counts.committed, counts.bytes_received) == (2, 1, 0, 0)
    assert not pair.receiver.events(Arrived)


def test_announcements_may_come_in_any_order(pair):
    pair.begin()
    peers, announced = pair.sender.agent._peers, []
    send, peers.send = peers.send, lambda number, message: announced.append((number, message))
    pair.push(0, 2)
    pair.push(2, 4)
    pair.run(0.2)
    peers.send = send
    for number, message in reversed(announced):
        send(number, message)
    pair.sender.agent.finish(1, TOKENS, 4 * BLOCK, ())
    pair.run()
    assert pair.receiver.events(Arrived)


def test_a_block_that_is_announced_twice_counts_as_it_was_first(pair):
    """Its checksum is not replaced by a later one that fits other bytes."""
    pair.begin()
    pair.send()
    pair.sender.poll()
    pair.deliver()
    pair.sender.poll()
    pair.say(pair.sender, handoff.Written(*NAME, 0, (1, 2, 3, 4)))
    assert len(pair.receiver.events(Arrived)) == 1


def test_a_sender_that_another_worker_plays_cannot_refuse_a_grant_that_is_being_offered(pair):
    stranger = Stranger(pair)
    pair.sender.link.stop()
    pair.grant()
    stranger.say(handoff.Abort(*NAME, "no"))
    assert not pair.receiver.events(Aborted)
    pair.sender.link.resume()
    pair.expect()
    assert arrives(pair)


# a sender


def test_a_stale_grant_is_not_taken_for_the_one_that_follows(pair):
    pair.begin()
    pair.receiver.agent.revoke(1)
    pair.run()
    pair.say(pair.receiver, handoff.Grant(*NAME, (0, 1, 2, 3), 0, 1.0, 1))
    assert len(pair.sender.events(Granted)) == 1
    pair.grant(table=[4, 5, 6, 7])
    pair.run()
    assert len(pair.sender.events(Granted)) == 2
    assert arrives(pair)
    assert pair.receiver.arena[:, 0].tolist() == [0, 0, 0, 0, 7, 7, 7, 7]


def test_a_grant_that_its_own_revocation_has_overtaken_is_gone(pair):
    """Also where the room is not known yet."""
    pair.connect()
    pair.say(pair.receiver, handoff.Revoke(*NAME, 7), 0.1)
    pair.say(pair.receiver, handoff.Grant(*NAME, (0, 1, 2, 3), 0, 1.0, 7), 0.1)
    pair.expect()
    pair.run(0.1)
    assert not pair.sender.events(Granted)
    pair.say(pair.receiver, handoff.Grant(*NAME, (0, 1, 2, 3), 0, 1.0, 8), 0.1)
    assert pair.sender.events(Granted) == [Granted(1, 1, 4, 0)]


def test_a_revocation_of_an_earlier_grant_does_not_end_this_one(pair):
    pair.begin()
    pair.say(pair.receiver, handoff.Revoke(*NAME, 0))
    assert not pair.sender.events(GrantRevoked)
    assert arrives(pair)


def test_a_second_grant_changes_nothing_about_the_first(pair):
    pair.begin()
    pair.receiver.say(handoff.Grant(*NAME, (4, 5, 6, 7), 0, 1.0, 9), pair.sender)
    assert arrives(pair)
    assert pair.receiver.arena[:, 0].tolist() == [7, 7, 7, 7, 0, 0, 0, 0]


STRANGER = ("epoch-stranger", 1, 1)


def test_a_grant_from_another_worker_than_the_expected_one_is_not_taken(pair):
    pair.expect()
    stranger = Stranger(pair, to=pair.sender)
    stranger.say(handoff.Grant(*STRANGER, (0, 1, 2, 3), 0, 1.0, 1))
    assert not pair.sender.events(Granted)
    pair.grant()
    pair.run()
    assert arrives(pair)
    assert pair.sender.arena[:, 0].tolist() == [7] * 8  # the stranger's arena is the sender's own


def test_a_grant_from_another_worker_that_came_before_the_room_was_known_is_refused(pair):
    stranger = Stranger(pair, to=pair.sender)
    stranger.say(handoff.Grant(*STRANGER, (0, 1, 2, 3), 0, 1.0, 1))
    pair.expect()
    stranger.turn()
    assert not pair.sender.events(Granted)
    refusals = [message for message in stranger.heard if isinstance(message, handoff.Abort)]
    assert [message.reason for message in refusals] == ["the grant came from another worker or epoch"]
    assert refusals[0].retry
    pair.grant()
    assert arrives(pair)


def test_another_worker_neither_takes_a_grant_back_nor_ends_the_session_and_its_abort_is_acknowledged(pair):
    pair.expect()
    stranger = Stranger(pair, to=pair.sender)
    stranger.say(handoff.Revoke(*STRANGER, 1000))
    assert not any(isinstance(message, handoff.Revoked) for message in stranger.heard)
    stranger.say(handoff.Abort(*STRANGER, "no"))
    stranger.turn()
    assert stranger.heard[-1] == handoff.AbortAck(*STRANGER)
    assert not pair.sender.events(Aborted)
    pair.grant()
    assert arrives(pair)


def test_what_comes_over_another_connection_than_the_grants_changes_nothing(pair):
    pair.begin()
    stranger = Stranger(pair, to=pair.sender)
    stranger.say(handoff.Abort(*STRANGER, "no"))
    stranger.say(handoff.Revoke(*STRANGER, 1000))
    at_receiver = Stranger(pair, name="another")
    at_receiver.say(handoff.Abort(*NAME, "no"))
    at_receiver.say(handoff.Revoked(*NAME, 1000))
    assert arrives(pair)


# both


@pytest.mark.parametrize(
    ("said_by", "message"),
    [
        ("receiver", handoff.Written(*NAME, 0, (1,))),
        ("receiver", handoff.Revoked(*NAME, 1)),
        ("sender", handoff.Grant(*NAME, (), 0, 1.0, 1)),
        ("sender", handoff.Commit(*NAME)),
    ],
)
def test_what_only_the_other_side_says_is_no_message(pair, said_by, message):
    pair.begin()
    pair.say(getattr(pair, said_by), message)
    other = pair.sender if said_by == "receiver" else pair.receiver
    assert other.agent.counts().bad_messages == 1
    assert arrives(pair)


def test_a_commit_before_the_last_message_is_no_move_of_the_table(pair):
    pair.begin()
    pair.receiver.say(handoff.Commit(*NAME), pair.sender)
    pair.say(pair.receiver, handoff.Commit(*NAME))
    assert pair.sender.agent.counts().bad_messages == 2
    assert not pair.sender.events(Committed)
    assert arrives(pair)


def test_an_ended_room_that_is_used_again_is_refused(pair):
    pair.begin()
    assert arrives(pair)
    pair.expect()
    pair.grant()
    pair.run()
    for side in (pair.sender, pair.receiver):
        (aborted,) = side.events(Aborted)
        reason = "this room and attempt had a hand-off before"
        assert (aborted.cause, aborted.reason, aborted.retry) == ("refused", reason, True)
    assert len(pair.receiver.events(Released)) == 1
