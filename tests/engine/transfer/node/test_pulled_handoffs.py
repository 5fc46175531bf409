"""Hand-offs whose receiver copies the blocks from the sender's arena."""

from random import Random

import pytest
from handoff_pair import HASHES, TOKENS, Pair

from legato_engine.transfer.session.events import Aborted, Arrived, Granted, Released
from legato_protocol.wire import handoff

NAME = ("epoch-receiver", 1, 1)
NODE = {"node": (Random(0), 0.0, 0.0)}


def begun(**settings):
    pair = Pair(**settings)
    pair.begin()
    return pair


@pytest.mark.parametrize(
    ("settings", "pulled"),
    [
        (NODE, True),
        ({"sender": NODE}, False),
        ({"receiver": NODE}, False),
        ({"node": (Random(0), 0.0, 1.0)}, False),  # the arena cannot be opened
        (NODE | {"checksum": False}, False),
        ({"sender": NODE, "receiver": NODE | {"checksum": False}}, False),
    ],
)
def test_blocks_are_copied_if_both_can_and_verify_and_written_otherwise(settings, pulled):
    pair = begun(**settings)
    puts, put = [], pair.sender.link.put
    pair.sender.link.put = lambda *arguments: (puts.append(arguments), put(*arguments))
    pair.hand_over()
    (arrived,) = pair.receiver.events(Arrived)
    counts = pair.receiver.agent.counts()
    assert (arrived.pulled, bool(puts), counts.bytes_pulled) == (pulled, not pulled, counts.bytes_received * pulled)
    assert (pair.receiver.arena[:4] == 7).all()
    assert counts.readable_peers == 0 or "sender" in settings or "checksum" not in settings, "it offers no wrong sums"


@pytest.mark.parametrize(
    ("settings", "sources"),
    [(NODE, ()), (NODE, (0,)), (NODE, (0, 8)), ({}, (0, 1))],
    ids=["none", "few", "beyond", "put"],
)
def test_blocks_that_are_not_in_the_senders_arena_are_refused(settings, sources):
    pair = begun(**settings)
    pair.say(pair.sender, handoff.Written(*NAME, 0, (1, 2), 0, sources))
    (aborted,) = pair.receiver.events(Aborted)
    assert aborted.cause == "corrupt"
    assert "that its arena does not have" in aborted.reason


def test_a_grant_to_copy_memory_that_was_not_offered_is_ignored():
    pair = Pair()
    pair.connect()
    pair.expect()
    pair.say(pair.receiver, handoff.Grant(*NAME, (0,), 0, 1.0, 1, (), True))
    assert pair.sender.agent.counts().bad_messages == 1
    assert not pair.sender.events(Granted)


def test_a_grant_waits_until_the_arena_is_open():
    pair = Pair(**NODE)
    pair.connect()
    pair.receiver.node.neighbours._opening.add(number := next(iter(pair.receiver.agent._peers._connections)))
    pair.begin()
    assert not pair.sender.events(Granted)
    pair.receiver.node.neighbours._opening.discard(number)
    assert pair.arrives()


def test_blocks_that_the_sender_reuses_while_they_are_read_do_not_arrive():
    """Its abort is lost with the connection; the receiver keeps its blocks until its own copy has ended."""
    pair = begun(node=(Random(1), 40.0, 0.0), lease=100.0)
    pair.send()
    pair.run()
    pair.sender.agent.abort(1, "cancelled")
    pair.sender.link.close()
    pair.sender.arena.fill_(9)
    pair.run()
    assert not pair.receiver.events(Released)
    pair.run(60.0)
    assert [type(event) for event in pair.receiver.seen[-2:]] == [Aborted, Released]


def test_a_reused_block_fails_its_checksum():
    pair = begun(node=(Random(1), 40.0, 0.0), lease=100.0)
    pair.sender.agent.push(1, 0, range(4), HASHES)
    pair.sender.arena[2] = 9
    pair.run(60.0)
    pair.sender.agent.finish(1, TOKENS, 16, ())
    pair.run(1.0)
    (aborted,) = pair.receiver.events(Aborted)
    assert "1 of 4 blocks have a wrong checksum" in aborted.reason
