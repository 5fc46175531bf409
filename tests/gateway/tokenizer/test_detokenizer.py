"""Text of tokens: whole characters only, nothing lost, and nothing beyond a stop string."""

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.tokenizer.detokenizer import Detokenizer, StopStrings

SINGLE_BYTES = [bytes([byte]) for byte in range(256)]


def pieces_of(data: st.DataObject, whole: list[int]) -> list[list[int]]:
    """`whole` in consecutive pieces of drawn sizes."""
    pieces, at = [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, 5))
        pieces.append(whole[at : at + size])
        at += size
    return pieces


@settings(max_examples=times(40), deadline=None)
@given(st.data(), st.text())
def test_valid_text_comes_back_whole_and_never_half(data, text):
    """One byte for each token is the worst case: every character of several bytes is cut."""
    detokenizer = Detokenizer(SINGLE_BYTES)
    shown = ""
    for piece in pieces_of(data, list(text.encode())):
        shown += detokenizer.push(piece)
        assert text.startswith(shown)
    assert shown == text
    assert detokenizer.flush() == ""


@settings(max_examples=times(40), deadline=None)
@given(st.data(), st.binary())
def test_any_bytes_give_what_decoding_them_at_once_gives(data, raw):
    detokenizer = Detokenizer(SINGLE_BYTES)
    shown = "".join(detokenizer.push(piece) for piece in pieces_of(data, list(raw)))
    assert shown + detokenizer.flush() == raw.decode("utf-8", "replace")


def test_an_incomplete_character_waits_and_shows_as_replaced_only_at_the_end():
    emoji = list("🙂".encode())
    detokenizer = Detokenizer(SINGLE_BYTES)
    assert [detokenizer.push([byte]) for byte in emoji] == ["", "", "", "🙂"]
    assert detokenizer.push(emoji[:3]) == ""
    assert detokenizer.flush() == "�"
    assert detokenizer.push(emoji) == "🙂"


def test_ids_beyond_the_table_show_as_nothing():
    assert Detokenizer([b"a", b""]).push([0, 1, 7, 0]) == "aa"


def expected(text: str, stops: list[str], include: bool, least: int) -> tuple[str, str | None]:
    """What is shown of the whole text, reading it one character at a time: behind the first `least`, it may end."""
    for end in range(least + 1, len(text) + 1):
        matching = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if matching:
            longest = max(matching, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


letters = st.text(alphabet="ab", max_size=40)


@settings(max_examples=times(60), deadline=None)
@given(st.data(), letters, st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=4), st.booleans())
def test_text_ends_before_or_behind_the_first_stop_string_whatever_its_pieces(data, text, stops, include):
    """Two letters and many repeats: stop strings overlap one another and themselves."""
    matcher = StopStrings(stops, include)
    shown, at = "", 0
    least = data.draw(st.integers(0, 20))
    whole, hit = expected(text, stops, include, least)
    while at < len(text):
        size = data.draw(st.integers(1, 7))
        size = min(size, least - at) if at < least else size
        shown += matcher.push(text[at : at + size], at >= least)
        at += size
        assert whole.startswith(shown)
        assert not include or shown == whole[:at], "what is shown in any case does not wait"
    assert shown + matcher.flush() == whole
    assert matcher.hit == hit


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        ([], ["any", "thing"], ["any", "thing"]),
        (["END"], ["the E", "N", "D of it"], ["the ", "", ""]),
        (["END"], ["the E", "N", "T"], ["the ", "", "ENT"]),
        (["ab", "b"], ["xa", "bc", "d"], ["x", "", ""]),
        (["\n\n"], ["one\n", "two\n", "\n"], ["one", "\ntwo", ""]),
    ],
)
def test_only_what_may_begin_a_stop_string_waits(stops, pieces, shown):
    matcher = StopStrings(stops)
    assert [matcher.push(piece) for piece in pieces] == shown


def test_what_waits_is_bounded_by_the_longest_stop_string():
    matcher = StopStrings(["a" * 1000 + "b"])
    shown = sum(len(matcher.push("a")) for _ in range(5000))
    assert shown == 5000 - 1000
    assert len(matcher.flush()) == 1000
