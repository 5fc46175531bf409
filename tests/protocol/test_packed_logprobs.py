"""Logprobs packed as bytes are read as they were written, cut anywhere, and nonsense is found."""

from array import array

import msgspec
import pytest

from legato_protocol.wire.packed_logprobs import PackedLogprobs, PromptToken

TOKENS = [
    PromptToken(-0.5, 1, ((7, -0.5), (3, -2.0))),
    PromptToken(-8.25, 412, ((9, -0.25), (0, -3.0))),
    PromptToken(-9999.0, 50_000, ((1, 0.0), (2, -64.0))),
]


def packed(tokens, alternatives=2):
    logprobs = [number for token in tokens for number in (token.logprob, *(logprob for _, logprob in token.top))]
    ids = [id for token in tokens for id, _ in token.top]
    ranks = [token.rank for token in tokens]
    numbers = (("f", logprobs), ("i", ids), ("i", ranks))
    return PackedLogprobs(alternatives, *(array(kind, values).tobytes() for kind, values in numbers))


@pytest.mark.parametrize("count", range(4))
def test_they_are_read_as_written_from_any_of_them_on(count):
    given = packed(TOKENS)
    assert len(given) == 3
    assert list(given.after(count)) == TOKENS[count:]
    assert given.after(count) == packed(TOKENS[count:])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=PackedLogprobs) == given
    assert not given.fault(10)


def test_there_may_be_no_alternatives():
    tokens = [PromptToken(-1.0, 2, ())] * 2
    assert list(packed(tokens, 0)) == tokens
    assert not packed(tokens, 0).fault(1)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (PackedLogprobs(1, bytes(16), bytes(8), bytes(12)), "other sizes"),
        (PackedLogprobs(2, bytes(16), bytes(8), bytes(8)), "other sizes"),
        (PackedLogprobs(-1, b"", b"", bytes(8)), "other sizes"),
        (PackedLogprobs(0, bytes(9), b"", bytes(9)), "other sizes"),
        (packed([PromptToken(float("nan"), 1, ())], 0), "not finite"),
        (packed([PromptToken(float("-inf"), 1, ())], 0), "not finite"),
        (packed([PromptToken(float(each), 1, ()) for each in ("inf", "-inf")], 0), "not finite"),
        (packed([PromptToken(-1.0, 1, ((10, -1.0),))], 1), "not in the vocabulary"),
        (packed([PromptToken(-1.0, 1, ((-1, -1.0),))], 1), "not in the vocabulary"),
    ],
)
def test_nonsense_is_told(wrong, text):
    assert text in wrong.fault(10)
