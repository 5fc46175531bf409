"""Hand-offs of a model with a group of layers that keeps a window of 6 tokens, in blocks of 4."""

from random import Random

import pytest
from handoff_pair import BLOCK, HASHES, ROOT, TOKENS, Pair

from legato_engine.kvcache.sequence_sizes import SequenceSizes
from legato_engine.transfer.blocks.spans import WindowBlocks
from legato_engine.transfer.session.events import Aborted, Arrived, Granted
from legato_protocol.wire import handoff

NAME = ("epoch-receiver", 1, 1)
FIRST_BLOCKS = SequenceSizes(BLOCK, (6,)).first_blocks


@pytest.fixture
def pair():
    return begun()


def begun(**settings):
    """The receiver has granted blocks 4 and 5 for the window's blocks 2 and 3, and all four of the first group."""
    made = Pair(first_blocks=FIRST_BLOCKS, **settings)
    made.expect()
    made.receiver.agent.grant(1, 1, made.sender.peer, range(4), 0, ROOT, [WindowBlocks(2, [4, 5])])
    made.run()
    return made


def send(pair, window, computed=4 * BLOCK):
    full = computed // BLOCK
    pair.sender.agent.push(1, 0, range(full), HASHES[:full], [window])
    pair.sender.agent.finish(1, TOKENS, computed, ())
    pair.run()


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("settings", [{}, {"node": (Random(0), 0.1, 0.0)}], ids=["written", "copied"])
def test_of_a_window_only_granted_blocks_are_moved(settings, first):
    pair = begun(**settings)
    (granted,) = pair.sender.events(Granted)
    assert (granted.blocks, granted.firsts) == (4, (2,))
    send(pair, WindowBlocks(first, range(4 + first, 8)))
    (arrived,) = pair.receiver.events(Arrived)
    assert (arrived.blocks, arrived.firsts) == (6, (2,))
    assert [int(block.float().mean()) for block in pair.receiver.arena] == [7] * 6 + [0, 0]


def test_a_sequence_whose_window_lacks_a_block_does_not_arrive(pair):
    send(pair, WindowBlocks(3, [7]))
    assert not pair.receiver.events(Arrived)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (handoff.Written(*NAME, 1, (0,), 1), "were not granted"),
        (handoff.Written(*NAME, 3, (0, 0), 1), "were not granted"),
        (handoff.Written(*NAME, 0, (0,), 2), "were not granted"),
        (handoff.Written(*NAME, 0, (0,), -1), "were not granted"),
        (handoff.Final(*NAME, TOKENS, 2 * BLOCK, (), 2), "contradicts the grant"),  # its window begins with block 0
    ],
)
def test_a_window_that_was_not_granted_is_refused(pair, message, reason):
    pair.say(pair.sender, message)
    (aborted,) = pair.receiver.events(Aborted)
    assert aborted.cause == "corrupt"
    assert reason in aborted.reason


def test_a_checksum_holds_for_one_group(pair):
    """The same bytes of the same tokens in another group do not pass."""
    written = pair.sender.sent(handoff.Written)
    pair.sender.agent.push(1, 0, range(4), HASHES, [WindowBlocks(4, [])])
    pair.run()
    pair.receiver.arena[4:6] = 7
    pair.say(pair.sender, handoff.Written(*NAME, 2, written[0].checksums[2:], 1))
    pair.say(pair.sender, handoff.Final(*NAME, TOKENS, 4 * BLOCK, (), 4))
    (aborted,) = pair.receiver.events(Aborted)
    assert "2 of 6 blocks have a wrong checksum" in aborted.reason


def test_a_grant_without_the_window_is_ignored():
    made = Pair(sender={"first_blocks": FIRST_BLOCKS})
    made.begin()
    assert not made.sender.events(Granted)
    assert made.sender.agent.counts().bad_messages == 1
