"""Text of tokens: whole characters only, nothing lost, and nothing beyond a stop string."""

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.tokenizer.detokenizer import Detokenizer, StopStrings


@settings(max_examples=times(80), deadline=None)
@given(st.data(), st.text().map(str.encode) | st.binary())
def test_any_bytes_give_what_decoding_them_in_one_piece_gives_and_never_half_a_character(data, raw):
    """One byte for each token is the worst case: every character of several bytes is cut."""
    detokenizer, text = Detokenizer([bytes([byte]) for byte in range(256)]), raw.decode("utf-8", "replace")
    shown, at = "", 0
    while at < len(raw):
        size = data.draw(st.integers(1, 5))
        shown += detokenizer.push(list(raw[at : at + size]))
        at += size
        assert text.startswith(shown)
    assert shown + detokenizer.flush() == text
    assert shown == text or text.encode() != raw, "valid text waits for nothing"


def test_ids_beyond_the_table_show_as_nothing():
    assert Detokenizer([b"a", b""]).push([0, 1, 7, 0]) == "aa"


def expected(text: str, stops: list[str], include: bool, least: int) -> tuple[str, str | None]:
    """Returns the visible part of the whole text, read by character, and the stop string that ends it after `least`."""
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


WAITS = [  # stop strings, pieces, and what is shown of each
    ([], ["any", "thing"], ["any", "thing"]),
    (["END"], ["the E", "N", "D of it"], ["the ", "", ""]),
    (["END"], ["the E", "N", "T"], ["the ", "", "ENT"]),
    (["ab", "b"], ["xa", "bc", "d"], ["x", "", ""]),
    (["\n\n"], ["one\n", "two\n", "\n"], ["one", "\ntwo", ""]),
    (["a" * 1000 + "b"], ["a" * 1000, "aa", "a"], ["", "aa", "a"]),
]


@pytest.mark.parametrize(("stops", "pieces", "shown"), WAITS)
def test_only_what_may_begin_a_stop_string_waits(stops, pieces, shown):
    matcher = StopStrings(stops)
    assert [matcher.push(piece) for piece in pieces] == shown
