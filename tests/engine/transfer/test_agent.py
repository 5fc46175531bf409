"""Promises of the agent to its core, between two agents in virtual time."""

import pytest
from handoff_pair import BLOCK, BLOCKS, ROOT, TOKENS, Stranger

from legato_engine.transfer.session.events import Aborted, Arrived, Granted
from legato_protocol.wire import handoff


def test_blocks_go_to_their_places_in_the_receivers_table(pair):
    for block in range(4):
        pair.sender.arena[block] = 10 + block
    pair.begin(table=[6, 1, 4, 2, 7], cached=1)
    assert pair.sender.events(Granted) == [Granted(1, 1, 5, 1)]
    pair.hand_over()
    assert pair.receiver.events(Arrived)[0].blocks == 3
    assert pair.receiver.arena[:, 0].tolist() == [0, 11, 13, 0, 12, 0, 0, 0]


@pytest.mark.parametrize(("table", "cached"), [([1, 2], 3), ([1, 2], -1), ([1, 2, 1], 0), ([1, BLOCKS], 0), ([-1], 0)])
def test_a_table_that_cannot_be_one_is_refused(pair, table, cached):
    with pytest.raises(ValueError, match="not a block table"):
        pair.receiver.agent.grant(1, 1, pair.sender.peer, table, cached, ROOT)
    assert pair.receiver.agent.pending() == 0


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_an_abort_says_what_caused_it_and_one_of_the_senders_own_is_no_longer_wanted(pair, side):
    pair.begin()
    here = getattr(pair, side)
    there = pair.receiver if here is pair.sender else pair.sender
    here.agent.abort(1, "the client is gone")
    if side == "sender":
        assert here.agent.next_timer() == 0, "its event waits for the next poll"
    pair.run()
    (own,), (other,) = here.events(Aborted), there.events(Aborted)
    assert (own.cause, own.reason, own.wanted) == ("cancelled", "the client is gone", False)
    assert (other.cause, other.reason, other.wanted) == ("refused", "the client is gone", side == "receiver")


ABOUT_ROOM_1 = [
    handoff.Written("an epoch that is gone", 1, 1, 0, (1, 2, 3, 4)),
    handoff.Final("an epoch that is gone", 1, 1, TOKENS, 4 * BLOCK, (), 4),
    handoff.Commit("an epoch that is gone", 1, 1),
    handoff.Abort("an epoch that is gone", 1, 1, "no"),
]


@pytest.mark.parametrize("message", ABOUT_ROOM_1, ids=lambda message: type(message).__name__)
def test_a_message_of_an_unknown_epoch_or_a_damaged_one_is_counted_and_moves_nothing(pair, message):
    stranger = Stranger(pair)
    stranger.say(message)
    stranger.say(message)
    stranger.link.send(stranger.number, b"12345678 no message")
    stranger.turn()
    counts = pair.receiver.agent.counts()
    assert (counts.unknown_epochs, counts.bad_messages, counts.refused_peers) == (2, 1, 0)
    pair.begin()
    assert pair.arrives()
    assert not pair.receiver.events(Aborted)


def test_what_connecting_takes_is_not_taken_off_the_senders_lease(pair):
    pair.sender.link.stop()
    pair.receiver.agent.grant(1, 1, pair.sender.peer, range(4), 0, ROOT)
    pair.run(0.9)  # of a lease of 1
    pair.sender.link.resume()
    pair.wait(lambda: any(peer.trusted for peer in pair.sender.agent._peers._connections.values()))
    pair.sender.link.stop()
    pair.run(0.7)
    pair.sender.link.resume()
    pair.sender.agent.expect(1, 1, pair.receiver.peer, ROOT)
    pair.run()
    pair.hand_over()
    assert not pair.receiver.events(Aborted)
    assert pair.receiver.events(Arrived)
