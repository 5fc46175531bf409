"""Sessions refuse messages that are stale, of another worker, or contradict the grant."""

import pytest
from handoff_pair import BLOCK, HASHES, TOKENS, Stranger

from legato_engine.transfer.session.events import Aborted, Arrived, Granted, GrantRevoked, Released, WritingBegan
from legato_protocol.wire import handoff

NAME = ("epoch-receiver", 1, 1)  # how messages of room 1 begin: the epoch is the receiver's


# a receiver


def test_a_stale_revoked_takes_no_blocks_from_a_grant_that_is_in_force(pair):
    pair.begin()
    pair.revoke()
    pair.grant()
    pair.sender.say(handoff.Revoked(*NAME, 1), pair.receiver)
    assert pair.arrives()


FINAL = {"token_ids": TOKENS * 2, "computed": 4 * BLOCK, "tokens": (), "blocks": 4}
CONTRADICTIONS = {
    "more blocks than its tokens fill": {"blocks": 5},
    "fewer blocks than its tokens fill": {"blocks": 3},
    "more tokens computed than sent": {"token_ids": TOKENS, "computed": 4 * BLOCK + 1, "blocks": 5},
    "beyond the grant": {"computed": 4 * BLOCK + 1, "blocks": 5},
    "fewer than no tokens": {"computed": -BLOCK, "blocks": -1},
}
REFUSED = [
    pytest.param(handoff.Written(*NAME, first, tuple(range(count))), "not granted", id=f"{count} from {first}")
    for first, count in ((0, 1), (0, 3), (1, 4), (4, 1))
] + [
    pytest.param(handoff.Final(*NAME, **FINAL | change), "contradicts", id=name)
    for name, change in CONTRADICTIONS.items()
]


@pytest.mark.parametrize(("message", "reason"), REFUSED)
def test_blocks_that_were_not_granted_and_an_end_that_contradicts_are_refused_as_corrupt(pair, message, reason):
    """The receiver has the first of 4 blocks: it granted those from 1 to 3."""
    pair.begin(table=[6, 1, 4, 2], cached=1)
    pair.say(pair.sender, message)
    (aborted,) = pair.receiver.events(Aborted)
    assert (aborted.cause, aborted.wanted, reason in aborted.reason) == ("corrupt", True, True)
    assert pair.receiver.agent.counts().corrupt_blocks == 0


def test_all_blocks_of_a_grant_may_be_announced(pair):
    pair.begin(table=[6, 1, 4, 2, 7], cached=1)
    pair.say(pair.sender, handoff.Written(*NAME, 1, (0, 0, 0, 0)))
    assert pair.receiver.seen == [WritingBegan(1, 1)]


def test_every_corrupt_block_is_counted_once(pair):
    pair.begin()
    for block in range(4):
        pair.network.faults.corrupt_put = float(block % 2)
        pair.sender.agent.push(1, block, [block], HASHES[block : block + 1])
        pair.run(0.1)
    pair.sender.agent.finish(1, TOKENS, 4 * BLOCK, ())
    pair.run()
    (aborted,) = pair.receiver.events(Aborted)
    assert (aborted.cause, aborted.reason[:13]) == ("corrupt", "2 of 4 blocks")
    counts = pair.receiver.agent.counts()
    assert (counts.corrupt_blocks, counts.aborted, counts.committed, counts.bytes_received) == (2, 1, 0, 0)
    assert not pair.receiver.events(Arrived)


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
    assert pair.arrives()


# a sender


def test_a_stale_grant_is_not_taken_for_the_one_that_follows(pair):
    pair.begin()
    pair.revoke()
    pair.say(pair.receiver, handoff.Grant(*NAME, (0, 1, 2, 3), 0, 1.0, 1))
    assert len(pair.sender.events(Granted)) == 1
    pair.grant(table=[4, 5, 6, 7])
    pair.run()
    assert len(pair.sender.events(Granted)) == 2
    assert pair.arrives()
    assert pair.receiver.arena[:, 0].tolist() == [0, 0, 0, 0, 7, 7, 7, 7]


def test_a_grant_that_its_own_revocation_has_overtaken_is_gone(pair):
    pair.connect()
    pair.say(pair.receiver, handoff.Revoke(*NAME, 7), 0.1)
    pair.say(pair.receiver, handoff.Grant(*NAME, (0, 1, 2, 3), 0, 1.0, 7), 0.1)
    pair.expect()
    pair.run(0.1)
    assert not pair.sender.events(Granted)
    pair.say(pair.receiver, handoff.Grant(*NAME, (0, 1, 2, 3), 0, 1.0, 8), 0.1)
    assert pair.sender.events(Granted) == [Granted(1, 1, 4, 0)]


@pytest.mark.parametrize("message", [handoff.Revoke(*NAME, 0), handoff.Grant(*NAME, (4, 5, 6, 7), 0, 1.0, 9)])
def test_a_revocation_of_an_earlier_grant_and_a_second_grant_change_nothing(pair, message):
    pair.begin()
    pair.say(pair.receiver, message)
    assert not pair.sender.events(GrantRevoked)
    assert pair.arrives()
    assert pair.receiver.arena[:, 0].tolist() == [7, 7, 7, 7, 0, 0, 0, 0]


STRANGER = ("epoch-stranger", 1, 1)


@pytest.mark.parametrize("early", [False, True], ids=["expected", "not expected yet"])
def test_a_grant_from_another_worker_than_the_expected_one_is_refused(pair, early):
    if not early:
        pair.expect()
    stranger = Stranger(pair, to=pair.sender)
    stranger.say(handoff.Grant(*STRANGER, (0, 1, 2, 3), 0, 1.0, 1))
    if early:
        pair.expect()
        stranger.turn()
        refusals = [(each.reason, each.wanted) for each in stranger.heard if isinstance(each, handoff.Abort)]
        assert refusals == [("the grant came from another worker or epoch", True)]
    assert not pair.sender.events(Granted)
    pair.grant()
    assert pair.arrives()
    assert pair.sender.arena[:, 0].tolist() == [7] * 8  # the stranger's arena is the sender's own


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
    assert pair.arrives()


def test_what_comes_over_another_connection_than_the_grants_changes_nothing(pair):
    pair.begin()
    stranger = Stranger(pair, to=pair.sender)
    stranger.say(handoff.Abort(*STRANGER, "no"))
    stranger.say(handoff.Revoke(*STRANGER, 1000))
    at_receiver = Stranger(pair, name="another")
    at_receiver.say(handoff.Abort(*NAME, "no"))
    at_receiver.say(handoff.Revoked(*NAME, 1000))
    assert pair.arrives()


# both


@pytest.mark.parametrize(
    ("said_by", "message"),
    [
        ("receiver", handoff.Written(*NAME, 0, (1,))),
        ("receiver", handoff.Revoked(*NAME, 1)),
        ("sender", handoff.Grant(*NAME, (), 0, 1.0, 1)),
        ("sender", handoff.Commit(*NAME)),
        ("receiver", handoff.Commit(*NAME)),  # it comes after the last message
    ],
)
def test_what_only_the_other_side_says_and_what_comes_too_early_are_no_messages(pair, said_by, message):
    pair.begin()
    pair.say(getattr(pair, said_by), message)
    other = pair.sender if said_by == "receiver" else pair.receiver
    assert other.agent.counts().bad_messages == 1
    assert pair.arrives()


def test_an_ended_room_that_is_used_again_is_refused(pair):
    pair.begin()
    assert pair.arrives()
    pair.expect()
    pair.grant()
    pair.run()
    for side in (pair.sender, pair.receiver):
        (aborted,) = side.events(Aborted)
        reason = "this room and attempt had a hand-off before"
        assert (aborted.cause, aborted.reason, aborted.wanted) == ("refused", reason, True)
    assert len(pair.receiver.events(Released)) == 1
