"""Forms of a completion's prompt; prompts and ids are counted before any is decoded."""

import json
from typing import Any

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from legato_gateway.errors import BadRequest, ContextLengthExceeded
from legato_gateway.openai.completions.prompts import prompts

CONTEXT = 10


def read(raw: bytes) -> Any:
    return prompts(Raw(raw), CONTEXT)


def listed(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


def refusal(raw: bytes) -> tuple[str | None, str]:
    with pytest.raises(BadRequest) as refused:
        read(raw)
    return refused.value.param, refused.value.message


IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=CONTEXT)


@settings(max_examples=times(30), deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=128) | st.lists(IDS, min_size=1, max_size=128))
def test_texts_and_lists_of_ids_are_read_whatever_is_in_them(sent):
    expected = tuple(each if isinstance(each, str) else tuple(each) for each in sent)
    assert read(json.dumps(sent).encode()) == expected
    assert read(json.dumps(sent[0]).encode()) == expected[:1]


@pytest.mark.parametrize("blank", [b" ", b"\n\t\r "])
@pytest.mark.parametrize("pieces", [b'[ "a" , "b" ]', b"[ [ 1 ] ]", b"[ 7 , 8 ]"])
def test_blanks_change_nothing(blank, pieces):
    assert read(pieces.replace(b" ", blank)) == read(pieces.replace(b" ", b""))


@pytest.mark.parametrize("item", [b'"a"', b'"\\\\"', b'"\\""', b'"a\\",\\"b"', b'""', b"[1]"])
def test_more_prompts_than_allowed_are_counted_and_not_decoded(item):
    assert len(read(listed(item, 128))) == 128
    assert refusal(listed(item, 129)) == ("prompt", "there are more than 128 prompts")
    assert refusal(listed(item, 128)[:-1] + b",1]")[0] == "prompt[128]"


@pytest.mark.parametrize("lists", [1, 2])
def test_more_ids_than_the_context_are_counted_and_not_decoded(lists):
    more = listed(b"1", CONTEXT + 1)
    assert read(listed(listed(b"1", CONTEXT), lists)) == ((1,) * CONTEXT,) * lists
    with pytest.raises(ContextLengthExceeded, match=f"maximum context length is {CONTEXT} tokens"):
        read(listed(more, lists))
    with pytest.raises(ContextLengthExceeded, match=f"length is {CONTEXT} tokens, but there are {CONTEXT + 1}"):
        read(more)


WRONG = {
    "prompt": (b"1", b"null", b"true", b"{}", b"[]", b"[ ]"),
    "prompt[0]": (b"[[]]", b"[-1]", b"[1.5]", b"[1e400]", b"[" + b"9" * 9000 + b"]", b"[true]", b"[null]", b"[{}]"),
    "prompt[1]": (b"[[1],[]]", b"[1,-1]", b"[1,2147483648]", b'[1,"a"]', b'["a",1]', b'[[1],"a"]'),
    "prompt[0][0]": (b'[["a"]]', b"[[[1]]]"),
}


@pytest.mark.parametrize(("param", "raws"), WRONG.items())
def test_what_is_wrong_is_found_where_it_is(param, raws):
    assert [refusal(raw)[0] for raw in raws] == [param] * len(raws)
