"""Every message survives the wire, and nothing else is taken for one."""

import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_messages import EVENTS, FROM_WORKER, ITEM, PARAMS, PEER_MESSAGES, PREFILL, REQUESTS, SEQUENCE, TO_WORKER

from legato_protocol.wire import handoff, kv_events, stream
from legato_protocol.wire.load import Load, PrefillCoefficients, TenantService
from legato_protocol.wire.messages import MAX_FRAME_BYTES, BadFrame, UnknownKind
from legato_protocol.wire.packed_tokens import pack_tokens, unpack_tokens

SAMPLES = {
    stream.decode_to_worker: TO_WORKER,
    stream.decode_from_worker: FROM_WORKER,
    kv_events.decode_event: EVENTS,
    kv_events.decode_request: REQUESTS,
    handoff.decode: PEER_MESSAGES,
}
CASES = [(decode, message) for decode, messages in SAMPLES.items() for message in messages]
each_message = pytest.mark.parametrize(("decode", "message"), CASES, ids=lambda case: type(case).__name__)
each_decoder = pytest.mark.parametrize("decode", SAMPLES, ids=lambda decode: f"{decode.__module__}.{decode.__name__}")


@each_message
def test_round_trip(decode, message):
    assert decode(stream.encode(message)) == message


@pytest.mark.parametrize(
    ("union", "messages"),
    [
        (stream.ToWorker, TO_WORKER),
        (stream.FromWorker, FROM_WORKER),
        (kv_events.KVEvent, EVENTS),
        (handoff.HandoffMessage, PEER_MESSAGES),
    ],
)
def test_the_cases_above_cover_every_message(union, messages):
    assert set(typing.get_args(union)) <= {type(m) for m in messages}


@each_message
def test_a_later_version_may_append_fields(decode, message):
    raw = msgspec.msgpack.decode(stream.encode(message))
    assert len(raw) == 1 + len(message.__struct_fields__)  # nothing is left out, so an appended field has its own place
    assert decode(msgspec.msgpack.encode([*raw, "new"])) == message


def test_a_failure_code_of_a_later_version_is_an_internal_failure():
    """A worker may be newer than its gateway, which keeps the connection and the failure's meaning for retries."""
    frame = msgspec.msgpack.encode(["fail", "r1", 1, "out of tune", "a string broke", "decode", True])
    assert stream.decode_from_worker(frame) == stream.Failed(
        "r1", 1, "internal", "a string broke (out of tune)", "decode", True
    )
    with pytest.raises(BadFrame, match="Expected `int` >= 0"):
        stream.decode_from_worker(msgspec.msgpack.encode(["fail", "r1", -1, "out of tune", "", "decode", True]))


@each_decoder
def test_a_kind_of_a_later_version_is_told_from_a_frame_that_is_wrong(decode):
    with pytest.raises(UnknownKind, match="'later'"):
        decode(msgspec.msgpack.encode(["later", "r1", 1]))
    for wrong in ([], ["", 1], [5], {"later": 1}, "later"):
        with pytest.raises(BadFrame) as caught:
            decode(msgspec.msgpack.encode(wrong))
        assert not isinstance(caught.value, UnknownKind)


def test_a_map_whose_key_is_a_map_is_a_bad_frame():
    for frame in (b"\x81\x81\x01\x02\x03", b"\x92\xa1x\x81\x81\x01\x02\x03"):
        with pytest.raises(BadFrame):
            stream.decode_to_worker(frame)


def test_a_known_kind_with_wrong_fields_is_not_skipped():
    with pytest.raises(BadFrame) as caught:
        stream.decode_to_worker(msgspec.msgpack.encode(["cancel", 5]))
    assert not isinstance(caught.value, UnknownKind)


def test_tokens_of_a_step_are_small():
    """64 sequences with one token each: one frame of under 3 KB, so a step's frame fits a few packets."""
    items = tuple(stream.TokenItem(f"{i:08x}", 1, 0, 100, (40_000,)) for i in range(64))
    assert len(stream.encode(stream.Tokens(items))) < 64 * 46


def test_a_long_prompt_costs_four_bytes_a_token():
    tokens = pack_tokens([49_000] * 100_000)
    sequence = stream.Sequence(tokens, 100_000, PARAMS, 30.0)
    assert len(stream.encode(stream.Generate("r", 1, sequence))) < 4 * 100_000 + 300


@each_decoder
@settings(max_examples=200)
@given(data=st.binary(max_size=200))
def test_noise_is_a_bad_frame_and_nothing_worse(decode, data):
    try:
        decode(data)
    except BadFrame:
        return
    tiny = {"clear", "want", "lost", "cancel", "split", "greet"}
    assert msgspec.msgpack.decode(data)[0] in tiny


@each_message
def test_a_truncated_frame_is_refused(decode, message):
    whole = stream.encode(message)
    for end in range(len(whole)):
        with pytest.raises(BadFrame):
            decode(whole[:end])


def test_oversized_frames_are_refused_before_they_are_read():
    with pytest.raises(BadFrame, match="at most"):
        stream.decode_to_worker(b"\x00" * (MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"token_ids": b"\x00" * 7}, "7 bytes of token ids"),
        ({"prompt_len": 0}, "prompt of 0"),
        ({"prompt_len": 101}, "prompt of 101"),
        ({"choices": ()}, "at least one"),
        ({"prompt_len": 99}, "only a sequence with no output"),
        ({"params": msgspec.structs.replace(PARAMS, max_tokens=0)}, "max_tokens is 0"),
    ],
)
def test_an_impossible_sequence_is_refused(changes, text):
    bad = msgspec.structs.replace(SEQUENCE, **changes)
    with pytest.raises(BadFrame, match=text):
        stream.decode_to_worker(stream.encode(stream.Generate("r", 1, bad)))


HELLO, TOKENS, LOAD = FROM_WORKER[0], stream.Tokens((ITEM,)), FROM_WORKER[2]
SENSELESS = [
    *((HELLO, change) for change in ({"block_size": 0}, {"num_blocks": 0}, {"max_length": -1})),
    *(
        (TOKENS, {"items": (msgspec.structs.replace(ITEM, **change),)})
        for change in ({"token_ids": (-1,)}, {"token_ids": (1 << 31,)}, {"index": -1}, {"choice": -1})
    ),
    *((LOAD, {"prefill_rate": rate}) for rate in (float("nan"), float("inf"))),
    *((LOAD, change) for change in ({"free_blocks": -1}, {"step_time": -0.1}, {"tokens_by_tenant": {"a": -1}})),
    *((LOAD, {"served_elsewhere": {"a": service}}) for service in (TenantService(-1, 0), TenantService(0, -1))),
]


@pytest.mark.parametrize(("message", "changes"), SENSELESS)
def test_numbers_of_a_worker_that_make_no_sense_are_refused(message, changes):
    stream.decode_from_worker(stream.encode(message))
    with pytest.raises(BadFrame, match="Expected"):
        stream.decode_from_worker(stream.encode(msgspec.structs.replace(message, **changes)))


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_packed_tokens_unpack(tokens):
    packed = pack_tokens(tokens)
    assert unpack_tokens(packed) == tokens
    assert packed == b"".join(t.to_bytes(4, "little", signed=True) for t in tokens)


def test_the_prefill_rate_is_that_of_full_steps_at_the_context_of_late():
    assert PREFILL.rate == pytest.approx(512 / (0.006 + 512 * 5e-4 + 512 * 256 * 1.5e-7))


def test_a_step_that_takes_no_time_has_a_rate_all_the_same():
    assert PrefillCoefficients(0.0, 0.0, 0.0, 512).rate == 0.0
    load = Load(1, 2, 3, 4, 5, 6, 7, prefill_rate=PrefillCoefficients(0.0, 1e-300, 0.0, 512).rate)
    assert stream.decode_from_worker(stream.encode(load)) == load


def test_a_load_of_an_earlier_version_lacks_what_came_later():
    raw = msgspec.msgpack.decode(stream.encode(Load(1, 2, 3, 4, 5, 6, 7)))
    assert stream.decode_from_worker(msgspec.msgpack.encode(raw[:13])) == Load(1, 2, 3, 4, 5, 6, 7)
