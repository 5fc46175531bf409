"""One choice's tokens and text, whatever pieces its tokens come in."""

from hypothesis import given
from hypothesis import strategies as st

from legato_gateway.choice import Choice
from legato_protocol.stream import TokenItem


def _choice(lab, **overrides):
    return Choice(0, lab.request(**overrides), lab.vocabulary)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=40), st.booleans())
def test_repeats_change_nothing(lab, pieces, ends):
    """Items begin at known tokens or at the next one, in any order: the text is that of the tokens once each."""
    tokens = [(7 * index) % 256 for index in range(60)]
    choice = _choice(lab)
    text = ""
    for start, count in pieces:
        start = min(start, len(choice.tokens))
        delta = choice.take(TokenItem("r", 1, 0, start, tuple(tokens[start : start + count])))
        text += delta.text if delta else ""
    if ends:
        known = len(choice.tokens)
        delta = choice.take(TokenItem("r", 1, 0, known, (tokens[known],), finish="length"))
        text += delta.text
        assert choice.finish == "length"
    assert choice.tokens == tokens[: len(choice.tokens)]
    assert text == b"".join(map(lab.vocabulary.token_bytes, choice.tokens)).decode()


@given(st.integers(1, 20), st.integers(0, 30), st.integers(1, 6))
def test_a_stop_string_cuts_the_same_text_however_tokens_are_grouped(lab, size, at, length):
    tokens = [(31 * index) % 256 for index in range(40)]
    whole = b"".join(map(lab.vocabulary.token_bytes, tokens)).decode()
    stop = whole[at : at + length]
    choice = _choice(lab, stop=(stop,))
    text = ""
    for start in range(0, len(tokens), size):
        if choice.finish is None:
            last = start + size >= len(tokens)
            item = TokenItem("r", 1, 0, start, tuple(tokens[start : start + size]), finish="length" if last else None)
            delta = choice.take(item)
            text += delta.text if delta else ""
    assert text == whole[: whole.index(stop)]
    assert choice.finish == "stop"
    assert len(choice.tokens) == -(-(whole.index(stop) + length) // 2)


def test_a_finish_that_is_told_late_still_ends_the_choice(lab):
    choice = _choice(lab)
    choice.take(TokenItem("r", 1, 0, 0, (1, 2)))
    assert choice.take(TokenItem("r", 1, 0, 0, (1,), finish="length")) is None
    assert choice.take(TokenItem("r", 1, 0, 1, (2,), finish="length")).finish == "length"
