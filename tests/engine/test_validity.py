"""Bounds of a frame: numbers of hand-offs, and parameters of sampling."""

import math

import msgspec
import pytest

from legato_engine.validity import frame_fault
from legato_protocol.sampling.limits import RANGES
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Decode, Generate, Handoff, Peer, Prefill, Sequence

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
def test_a_room_or_an_attempt_of_more_than_63_bits_is_named(wrong):
    assert all(frame_fault(frame, 10).startswith(f"room {wrong};") for frame in frames(1, wrong))
    attempts = [*frames(wrong, 1), Generate("r", wrong, SEQUENCE)]
    assert all(frame_fault(frame, 10).startswith(f"attempt {wrong};") for frame in attempts)


@pytest.mark.parametrize("number", [0, LARGEST])
def test_the_smallest_and_the_largest_are_allowed(number):
    assert not any(frame_fault(frame, 10) for frame in [*frames(number, number), Generate("r", number, SEQUENCE)])


def test_a_sequence_is_looked_at_wherever_there_is_one():
    prefill, decode, handoff = (frame_fault(frame, 3) for frame in frames(1, 1))
    assert prefill == decode == "token ids from 1 to 3; the vocabulary has 0 to 2"
    assert handoff is None


def test_an_adapter_that_is_longer_than_a_digest_is_named():
    for length, fault in ((64, None), (65, "adapter has 65 characters; at most 64 are allowed")):
        assert frame_fault(Generate("r", 1, msgspec.structs.replace(SEQUENCE, adapter="x" * length)), 10) == fault


@pytest.mark.parametrize(("name", "interval"), RANGES.items())
def test_a_parameter_outside_its_range_is_named_with_what_is_allowed(name, interval):
    for value in (interval.least, interval.most):
        assert frame_fault(generate(**{name: value}), 10) is None
    wild = (math.nan, math.inf, -math.inf, 1e300) if isinstance(interval.least, float) else ()
    for value in (interval.least - 1, interval.most + 1, *wild):
        assert frame_fault(generate(**{name: value}), 10) == f"{name} is {value}; allowed is {interval}"


@pytest.mark.parametrize(
    ("params", "text"),
    [
        *(({"logprobs": count}, f"logprobs is {count}; allowed is 0 to 10") for count in (-1, 11)),
        ({"logit_bias": {9: 0.0, 10: 1.0}}, "logit_bias names token 10; the vocabulary has 0 to 9"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias names token -1; the vocabulary has 0 to 9"),
        ({"logit_bias": {3: 100.5}}, "logit_bias of token 3 is 100.5; allowed is -100.0 to 100.0"),
        ({"logit_bias": {3: math.nan}}, "logit_bias of token 3 is nan; allowed is -100.0 to 100.0"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "logit_bias names 1025 tokens; at most 1024 are allowed"),
        ({"stop_token_ids": (0, 10)}, "stop_token_ids are from 0 to 10; the vocabulary has 0 to 9"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids are from -1 to -1; the vocabulary has 0 to 9"),
        ({"stop_token_ids": tuple(range(10))}, "stop_token_ids has 10 tokens; at most 9 are allowed"),
        ({"allowed_token_ids": (0, 10)}, "allowed_token_ids has tokens from 0 to 10; the vocabulary has 0 to 9"),
        ({"allowed_token_ids": (1,) * 1025}, "allowed_token_ids has 1025 tokens; at most 1024 are allowed"),
        ({"bad_words": ((1,), (2, -1))}, "bad_words has tokens from -1 to 2; the vocabulary has 0 to 9"),
        ({"bad_words": ((1,),) * 257}, "bad_words has 257 words; at most 256 are allowed"),
        *(
            ({"bad_words": (word,)}, "bad_words has a word of less than 1 or more than 64 tokens")
            for word in ((), (1,) * 65)
        ),
        ({"grammar": "x"}, "a grammar without stop_token_ids: nothing would end the output"),
        ({"grammar": "é" * (1 << 17) + "x"}, "grammar has 262145 bytes; at most 262144 are allowed"),
    ],
)
def test_lists_of_tokens_are_bounded(params, text):
    assert frame_fault(generate(**params), 10) == text


def test_lists_of_tokens_at_their_bounds_are_allowed():
    params = {"logprobs": 10, "logit_bias": {0: -100.0, 9: 100.0}, "stop_token_ids": (*range(1, 10), 9, 9)}
    params |= {"allowed_token_ids": (0, 9) * 512, "bad_words": ((0, 9) * 32,) * 256}
    assert frame_fault(generate(**params), 10) is None


def test_a_vocabulary_of_any_size_does_not_take_more_stops_than_steps_can_mask():
    assert frame_fault(generate(stop_token_ids=tuple(range(64))), 50_000) is None
    assert "at most 64" in frame_fault(generate(stop_token_ids=tuple(range(65))), 50_000)


def generate(**params):
    chosen = SamplingParams(**{"max_tokens": 4, "seed": 1} | params)
    return Generate("r", 1, Sequence(pack_tokens([1, 2, 3]), 3, chosen, 60.0))
