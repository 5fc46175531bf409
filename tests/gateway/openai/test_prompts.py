"""What a completion's prompt may be; how many prompts and ids there are is known before any is decoded."""

import json
from typing import Any

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from legato_gateway.errors import BadRequest, ContextLengthExceeded
from legato_gateway.openai.prompts import prompts

CONTEXT = 10


def read(value: Any) -> Any:
    return prompts(Raw(json.dumps(value).encode()), CONTEXT)


def told(raw: bytes) -> tuple[str | None, str]:
    with pytest.raises(BadRequest) as refused:
        prompts(Raw(raw), CONTEXT)
    return refused.value.param, refused.value.message


@settings(max_examples=times(15), deadline=None)
@given(st.text())
def test_one_text(text):
    assert read(text) == (text,)


@settings(max_examples=times(10), deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=128))
def test_texts_whatever_is_in_them(texts):
    assert read(texts) == tuple(texts)


@settings(max_examples=times(10), deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=CONTEXT), min_size=1, max_size=128))
def test_lists_of_ids(lists):
    assert read(lists) == tuple(map(tuple, lists))
    assert read(lists[0]) == (tuple(lists[0]),)


@pytest.mark.parametrize("blank", [b" ", b"\n\t\r "])
def test_blanks_change_nothing(blank):
    for pieces in ([b"[", b'"a"', b",", b'"b"', b"]"], [b"[", b"[", b"1", b"]", b"]"], [b"[", b"7", b",", b"8", b"]"]):
        assert prompts(Raw(blank.join(pieces)), CONTEXT) == prompts(Raw(b"".join(pieces)), CONTEXT)


@pytest.mark.parametrize("text", [b'"a"', b'"\\\\"', b'"\\""', b'"a\\",\\"b"', b'""'])
def test_more_texts_than_allowed_are_counted_and_not_decoded(text):
    assert len(prompts(Raw(b"[" + b",".join([text] * 128) + b"]"), CONTEXT)) == 128
    message = "there are more than 128 prompts"
    assert told(b"[" + b",".join([text] * 129) + b"]") == ("prompt", message)
    assert told(b"[" + b",".join([text] * 128) + b",1]") == ("prompt[128]", "prompt[128]: expected `str`, got `int`")


def test_more_lists_than_allowed_are_counted_and_not_decoded():
    assert len(prompts(Raw(b"[" + b",".join([b"[1]"] * 128) + b"]"), CONTEXT)) == 128
    assert told(b"[" + b",".join([b"[1]"] * 129) + b"]") == ("prompt", "there are more than 128 prompts")


@pytest.mark.parametrize("lists", [1, 2])
def test_more_ids_than_the_context_are_counted_and_not_decoded(lists):
    ids = b"[" + b",".join([b"1"] * CONTEXT) + b"]"
    more = b"[" + b",".join([b"1"] * (CONTEXT + 1)) + b"]"
    assert prompts(Raw(b"[" + b",".join([ids] * lists) + b"]"), CONTEXT) == ((1,) * CONTEXT,) * lists
    with pytest.raises(ContextLengthExceeded, match=f"maximum context length is {CONTEXT} tokens"):
        prompts(Raw(b"[" + b",".join([more] * lists) + b"]"), CONTEXT)
    with pytest.raises(ContextLengthExceeded, match=f"length is {CONTEXT} tokens, but there are {CONTEXT + 1}"):
        prompts(Raw(more), CONTEXT)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"1", "prompt"),
        (b"null", "prompt"),
        (b"true", "prompt"),
        (b"{}", "prompt"),
        (b"[]", "prompt"),
        (b"[ ]", "prompt"),
        (b"[[]]", "prompt[0]"),
        (b"[[1],[]]", "prompt[1]"),
        (b"[-1]", "prompt[0]"),
        (b"[1,-1]", "prompt[1]"),
        (b"[1,2147483648]", "prompt[1]"),
        (b"[1.5]", "prompt[0]"),
        (b"[1e400]", "prompt[0]"),
        (b"[" + b"9" * 9000 + b"]", "prompt[0]"),
        (b"[true]", "prompt[0]"),
        (b"[null]", "prompt[0]"),
        (b"[{}]", "prompt[0]"),
        (b'[1,"a"]', "prompt[1]"),
        (b'["a",1]', "prompt[1]"),
        (b'[[1],"a"]', "prompt[1]"),
        (b'[["a"]]', "prompt[0][0]"),
        (b"[[[1]]]", "prompt[0][0]"),
    ],
)
def test_what_is_wrong_is_found_where_it_is(raw, param):
    assert told(raw)[0] == param
