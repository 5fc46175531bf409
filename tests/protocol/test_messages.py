"""Every message survives the wire, and nothing else is taken for one."""

import typing
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_protocol import handoff, kv_events, stream
from legato_protocol.stream import BadFrame

PARAMS = stream.SamplingParams(max_tokens=64, seed=2**62, temperature=0.7, logit_bias={5: -100.0}, stop_token_ids=(2,))
SEQUENCE = stream.Sequence(stream.pack_tokens(range(100)), 100, PARAMS, 30.0, choices=(0, 1))
PEER = stream.Peer("decode-0", "00ff", b"\x01\x02")
ITEM = stream.TokenItem("r1", 1, 0, 7, (42,), (stream.TokenLogprobs(-0.5, (stream.TopLogprob(42, -0.5),)),), "stop", 16)
PREFILL = stream.PrefillCoefficients(0.006, 5e-4, 1.5e-7, 512, 256.0)
TO_WORKER = [
    stream.Greeting("gw"),
    stream.Generate("r1", 1, SEQUENCE),
    stream.Prefill("r1", 1, 9, SEQUENCE, PEER),
    stream.Decode("r1", 1, 9, SEQUENCE, PEER),
    stream.Handoff("r1", 2, 10, PEER),
    stream.Cancel("r1", 2, (0, 3)),
    stream.Split("r1", 2, {0: "r1/0", 2: "r1/2"}),
    stream.Pause("r1", 2, True),
]
FROM_WORKER = [
    stream.Hello("w", "e", "decode", "kv", "weights", "layout", 16, 100, 4096, b"addr", "ucx:tcp"),
    stream.Tokens((ITEM,)),
    stream.Load(
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        tokens_by_tenant={"a": 5},
        prefill_cost=PREFILL,
        decode_cost=stream.DecodeCoefficients(1, 2, 3),
    ),
    stream.HandoffReport("r1", 1, 9, "prefill-0", 16, 0, 1 << 20, 0.01, 0.002, "ucx:tcp"),
    stream.Failed("r1", 1, "transfer", "checksum of block 3", "transfer", True),
    stream.Begun("r", 1),
    stream.Lost("e", "killed by signal 9"),
]
EVENTS = [
    kv_events.Snapshot("e", 5, 0, True, b"h" * 32),
    kv_events.Stored("e", 6, b"h" * 16),
    kv_events.Removed("e", 7, b"h" * 16),
]
REQUESTS = [kv_events.SnapshotRequest(), stream.Greeting("gw")]
PEER_MESSAGES = [
    handoff.PeerHello("w", "e", "kv", "layout", b"addr", 1 << 47, b"rkey", b"proof"),
    handoff.Grant("e", 9, 1, (4, 5, 6), 2, 10.0, 3),
    handoff.Revoke("e", 9, 1, 3),
    handoff.Revoked("e", 9, 1, 3),
    handoff.Written("e", 9, 1, 2, (2**64 - 1, 0)),
    handoff.Final("e", 9, 1, stream.pack_tokens([1, 2]), 1, (ITEM,), 1),
    handoff.Renew("e", 9, 1),
    handoff.Commit("e", 9, 1),
    handoff.Abort("e", 9, 1, "cancelled"),
    handoff.AbortAck("e", 9, 1),
]
CASES = [
    (decode, message)
    for decode, messages in (
        (stream.decode_to_worker, TO_WORKER),
        (stream.decode_from_worker, FROM_WORKER),
        (kv_events.decode_event, EVENTS),
        (kv_events.decode_request, REQUESTS),
        (handoff.decode, PEER_MESSAGES),
    )
    for message in messages
]
DECODERS: list[Callable[[bytes], object]] = [
    stream.decode_to_worker,
    stream.decode_from_worker,
    kv_events.decode_event,
    kv_events.decode_request,
    handoff.decode,
]


@pytest.mark.parametrize(("decode", "message"), CASES, ids=lambda case: type(case).__name__)
def test_round_trip(decode: Callable[[bytes], object], message: msgspec.Struct) -> None:
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
def test_the_cases_above_cover_every_message(union: object, messages: list[object]) -> None:
    assert set(typing.get_args(union)) <= {type(m) for m in messages}


@pytest.mark.parametrize("message", [m for _, m in CASES], ids=lambda m: type(m).__name__)
def test_messages_cannot_be_changed(message: msgspec.Struct) -> None:
    field = next(iter(message.__struct_fields__), None)
    if field is None:
        assert message == type(message)()
        return
    with pytest.raises(AttributeError):
        setattr(message, field, 0)


@pytest.mark.parametrize(("decode", "message"), CASES, ids=lambda case: type(case).__name__)
def test_a_later_version_may_append_fields(decode: Callable[[bytes], object], message: msgspec.Struct) -> None:
    raw = msgspec.msgpack.decode(stream.encode(message))
    assert len(raw) == 1 + len(message.__struct_fields__)  # nothing is left out, so an appended field has its own place
    assert decode(msgspec.msgpack.encode([*raw, "new"])) == message


def test_a_failure_code_of_a_later_version_is_an_internal_failure() -> None:
    """A worker may be newer than its gateway, which keeps the connection and the failure's meaning for retries."""
    frame = msgspec.msgpack.encode(["fail", "r1", 1, "out of tune", "a string broke", "decode", True])
    assert stream.decode_from_worker(frame) == stream.Failed(
        "r1", 1, "internal", "a string broke (out of tune)", "decode", True
    )
    with pytest.raises(stream.BadFrame, match="Expected `int` >= 0"):
        stream.decode_from_worker(msgspec.msgpack.encode(["fail", "r1", -1, "out of tune", "", "decode", True]))


def test_tokens_of_a_step_are_small() -> None:
    """64 sequences with one token each: one frame of under 3 KB, so a step's frame fits a few packets."""
    items = tuple(stream.TokenItem(f"{i:08x}", 1, 0, 100, (40_000,)) for i in range(64))
    assert len(stream.encode(stream.Tokens(items))) < 64 * 46


def test_a_long_prompt_costs_four_bytes_a_token() -> None:
    tokens = stream.pack_tokens([49_000] * 100_000)
    sequence = stream.Sequence(tokens, 100_000, PARAMS, 30.0)
    assert len(stream.encode(stream.Generate("r", 1, sequence))) < 4 * 100_000 + 300


@pytest.mark.parametrize("decode", DECODERS, ids=lambda d: f"{d.__module__}.{d.__name__}")
@settings(max_examples=200)
@given(data=st.binary(max_size=200))
def test_noise_is_a_bad_frame_and_nothing_worse(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decode(data)
    except BadFrame:
        return
    assert msgspec.msgpack.decode(data)[0] in {
        "clear",
        "want",
        "lost",
        "cancel",
        "split",
        "greet",
    }  # tiny and well-formed


@pytest.mark.parametrize(("decode", "message"), CASES, ids=lambda case: type(case).__name__)
def test_a_truncated_frame_is_refused(decode: Callable[[bytes], object], message: msgspec.Struct) -> None:
    whole = stream.encode(message)
    for end in range(len(whole)):
        with pytest.raises(BadFrame):
            decode(whole[:end])


def test_oversized_frames_are_refused_before_they_are_read() -> None:
    with pytest.raises(BadFrame, match="at most"):
        stream.decode_to_worker(b"\x00" * (stream.MAX_FRAME_BYTES + 1))


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
def test_an_impossible_sequence_is_refused(changes: dict[str, object], text: str) -> None:
    bad = msgspec.structs.replace(SEQUENCE, **changes)
    with pytest.raises(BadFrame, match=text):
        stream.decode_to_worker(stream.encode(stream.Generate("r", 1, bad)))


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (FROM_WORKER[0], {"block_size": 0}),
        (FROM_WORKER[0], {"num_blocks": 0}),
        (FROM_WORKER[0], {"max_length": -1}),
        (stream.Tokens((ITEM,)), {"items": (msgspec.structs.replace(ITEM, token_ids=(-1,)),)}),
        (stream.Tokens((ITEM,)), {"items": (msgspec.structs.replace(ITEM, token_ids=(1 << 31,)),)}),
        (stream.Tokens((ITEM,)), {"items": (msgspec.structs.replace(ITEM, index=-1),)}),
        (stream.Tokens((ITEM,)), {"items": (msgspec.structs.replace(ITEM, choice=-1),)}),
        (FROM_WORKER[2], {"free_blocks": -1}),
        (FROM_WORKER[2], {"prefill_rate": float("nan")}),
        (FROM_WORKER[2], {"prefill_rate": float("inf")}),
        (FROM_WORKER[2], {"step_time": -0.1}),
        (FROM_WORKER[2], {"tokens_by_tenant": {"a": -1}}),
    ],
)
def test_numbers_of_a_worker_that_make_no_sense_are_refused(
    message: msgspec.Struct, changes: dict[str, object]
) -> None:
    stream.decode_from_worker(stream.encode(message))
    with pytest.raises(BadFrame, match="Expected"):
        stream.decode_from_worker(stream.encode(msgspec.structs.replace(message, **changes)))


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_packed_tokens_unpack(tokens: list[int]) -> None:
    packed = stream.pack_tokens(tokens)
    assert stream.unpack_tokens(packed) == tokens
    assert packed == b"".join(t.to_bytes(4, "little", signed=True) for t in tokens)


def test_the_prefill_rate_is_that_of_full_steps_at_the_context_of_late() -> None:
    assert PREFILL.rate == pytest.approx(512 / (0.006 + 512 * 5e-4 + 512 * 256 * 1.5e-7))


def test_a_step_that_takes_no_time_has_a_rate_all_the_same() -> None:
    assert stream.PrefillCoefficients(0.0, 0.0, 0.0, 512).rate == 0.0
    load = stream.Load(1, 2, 3, 4, 5, 6, 7, prefill_rate=stream.PrefillCoefficients(0.0, 1e-300, 0.0, 512).rate)
    assert stream.decode_from_worker(stream.encode(load)) == load


def test_a_load_of_an_earlier_version_lacks_what_came_later() -> None:
    raw = msgspec.msgpack.decode(stream.encode(stream.Load(1, 2, 3, 4, 5, 6, 7)))
    assert stream.decode_from_worker(msgspec.msgpack.encode(raw[:13])) == stream.Load(1, 2, 3, 4, 5, 6, 7)
