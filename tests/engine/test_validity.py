"""Numbers in frames that hand-offs cannot work with."""

import pytest

from legato_engine.validity import frame_fault
from legato_protocol.stream import Decode, Generate, Handoff, Peer, Prefill, SamplingParams, Sequence, pack_tokens

SEQUENCE = Sequence(pack_tokens([1, 2, 3]), 3, SamplingParams(max_tokens=4, seed=1), 60.0)
PEER = Peer("w", "e", b"127.0.0.1:1")
LARGEST = (1 << 63) - 1


def frames(attempt, room):
    return [
        Prefill("r", attempt, room, SEQUENCE, PEER),
        Decode("r", attempt, room, SEQUENCE, PEER),
        Handoff("r", attempt, room, PEER),
    ]


@pytest.mark.parametrize("wrong", [-1, LARGEST + 1])
def test_a_room_or_an_attempt_that_is_no_number_of_63_bits_is_named(wrong):
    assert all(frame_fault(frame, 10).startswith(f"room {wrong};") for frame in frames(1, wrong))
    attempts = [*frames(wrong, 1), Generate("r", wrong, SEQUENCE)]
    assert all(frame_fault(frame, 10).startswith(f"attempt {wrong};") for frame in attempts)


def test_the_smallest_and_the_largest_are_allowed():
    for number in (0, LARGEST):
        assert [frame_fault(frame, 10) for frame in [*frames(number, number), Generate("r", number, SEQUENCE)]] == [
            None
        ] * 4


def test_a_sequence_is_looked_at_wherever_there_is_one():
    prefill, decode, handoff = (frame_fault(frame, 3) for frame in frames(1, 1))
    assert "the vocabulary has 0 to 2" in prefill
    assert "the vocabulary has 0 to 2" in decode
    assert handoff is None
