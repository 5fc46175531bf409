"""One choice's tokens and text, whatever pieces its tokens come in."""

from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.relay.choice import Choice
from legato_gateway.request import TokenText
from legato_gateway.tokenizer.detokenizer import Detokenizer
from legato_protocol.reasoning import ReasoningTokens
from legato_protocol.stream import TokenItem, TokenLogprobs


def _choice(lab, **overrides):
    return Choice(0, lab.request(**overrides), lab.vocabulary)


@settings(max_examples=times(50), deadline=None)
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


@settings(max_examples=times(50), deadline=None)
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
    assert delta.stop == stop
    assert len(choice.tokens) == -(-(whole.index(stop) + length) // 2)


def test_a_finish_that_is_told_late_still_ends_the_choice(lab):
    choice = _choice(lab)
    choice.take(TokenItem("r", 1, 0, 0, (1, 2)))
    assert choice.take(TokenItem("r", 1, 0, 0, (1,), finish="length")) is None
    assert choice.take(TokenItem("r", 1, 0, 1, (2,), finish="length")).finish == "length"


class Pieces:
    """A vocabulary of these tokens; `hidden` ones show as nothing."""

    def __init__(self, *table, hidden=()):
        self.table = table
        self._shown = [b"" if id in hidden else raw for id, raw in enumerate(table)]

    def detokenizer(self, shown=frozenset()):
        return Detokenizer([raw if id in shown else self._shown[id] for id, raw in enumerate(self.table)])

    def token_bytes(self, id):
        return self.table[id]


def test_the_token_that_ended_a_choice_is_counted_and_not_shown(lab):
    choice = _choice(lab, stop=("never",))
    delta = choice.take(TokenItem("r", 1, 0, 0, (1, 2, 3), finish="stop"))
    assert (delta.text, delta.tokens, delta.finish, delta.stop) == ("abac", (), "stop", None)
    assert choice.tokens == [1, 2, 3]


def test_the_stop_token_that_ended_a_choice_is_told_when_its_end_is(lab):
    choice = _choice(lab, own_stop_tokens=frozenset({9}))
    assert choice.take(TokenItem("r", 1, 0, 0, (1, 9))).stop_token is None
    assert choice.take(TokenItem("r", 1, 0, 2, (), finish="stop")).stop_token == 9
    empty = _choice(lab, own_stop_tokens=frozenset({9}))
    assert empty.take(TokenItem("r", 1, 0, 0, (), finish="stop")).stop_token is None
    spells = lab.vocabulary.token_bytes(9).decode()
    both = _choice(lab, own_stop_tokens=frozenset({9}), stop=(spells,), include_stop=True)
    delta = both.take(TokenItem("r", 1, 0, 0, (1, 9), finish="stop"))
    assert (delta.stop, delta.stop_token) == (spells, None)


def test_the_worker_says_how_a_choice_ended_unless_its_last_text_is_a_stop_string(lab):
    vocabulary = Pieces(b"ab", "🎉".encode()[:2])
    for stop, least, told in (("never", 0, ("ab�", "length")), ("�", 1, ("ab", "stop")), ("�", 2, ("ab�", "length"))):
        choice = Choice(0, lab.request(stop=(stop,), least_tokens=least), vocabulary)
        delta = choice.take(TokenItem("r", 1, 0, 0, (0, 1), finish="length"))
        assert (delta.text, choice.finish) == told


def _explained(lab, vocabulary, ids, size, **overrides):
    """Text and (token, offset) of a choice with logprobs whose tokens come `size` at a time."""
    choice = Choice(0, lab.request(logprobs=0, **overrides), vocabulary)
    text, told = "", []
    for start in range(0, len(ids), size):
        if choice.finish is None:
            tokens = tuple(ids[start : start + size])
            finish = "length" if start + size >= len(ids) else None
            item = TokenItem("r", 1, 0, start, tokens, logprobs=(TokenLogprobs(-1.0),) * len(tokens), finish=finish)
            if delta := choice.take(item):
                text += delta.text
                told += [(token.token, token.offset) for token in delta.tokens]
                assert not overrides or all(offset < len(text) for _, offset in told), "told before it is shown"
    return text, told


def test_tokens_stand_where_their_first_character_does(lab):
    """Several tokens of one character stand where it begins; a hidden token moves nothing."""
    party = "🎉".encode()
    vocabulary = Pieces(party[:2], party[2:], b"x", b"<|end|>", hidden={3})
    for size in (1, 2, 9):
        text, told = _explained(lab, vocabulary, [0, 1, 3, 2, 2], size)
        assert text == "🎉xx"
        assert told == [(0, 0), (1, 0), (3, 1), (2, 1), (2, 2)]


def test_tokens_are_told_with_their_logprobs_as_they_come(lab):
    """Even one that shows no text yet; one whose worker sent no logprobs has none."""
    party = "🎉".encode()
    choice = Choice(0, lab.request(logprobs=0), Pieces(party[:2], party[2:]))
    first = choice.take(TokenItem("r", 1, 0, 0, (0,), logprobs=(TokenLogprobs(-1.0),)))
    second = choice.take(TokenItem("r", 1, 0, 0, (0, 1), logprobs=(TokenLogprobs(-1.0), TokenLogprobs(-2.0))))
    third = choice.take(TokenItem("r", 1, 0, 2, (0,)))
    told = [(delta.text, *delta.tokens) for delta in (first, second, third)]
    assert told == [
        ("", TokenText(0, "�", party[:2], TokenLogprobs(-1.0), 0)),
        ("🎉", TokenText(1, "��", party[2:], TokenLogprobs(-2.0), 0)),
        ("", TokenText(0, "�", party[:2], None, 1)),
    ]


def test_tokens_of_a_stop_string_are_not_told(lab):
    vocabulary = Pieces(b"ab", b"c", b"EN", b"D", b"z")
    for size in (1, 2, 9):
        assert _explained(lab, vocabulary, [0, 1, 2, 3, 4], size, stop=("END",)) == ("abc", [(0, 0), (1, 2)])
        assert _explained(lab, vocabulary, [0, 1, 2, 4], size, stop=("cEND",)) == (
            "abcENz",
            [(0, 0), (1, 2), (2, 3), (4, 5)],
        )
        assert _explained(lab, vocabulary, [0, 1, 2], size, stop=("bcEND", "q")) == (
            "abcEN",
            [(0, 0), (1, 2), (2, 3)],
        )


def test_reasoning_tokens_are_counted_once_and_without_what_ended_the_choice(lab):
    choice = _choice(lab, reasoning=ReasoningTokens(open=1, close=2, begun=True))
    assert choice.reasoning_tokens == 0
    choice.take(TokenItem("r", 1, 0, 0, (7, 8)))
    choice.take(TokenItem("r", 1, 0, 1, (8, 9, 2, 7, 7)))
    assert choice.reasoning_tokens == 3
    cut_off = _choice(lab, reasoning=ReasoningTokens(open=1, close=2, begun=True))
    cut_off.take(TokenItem("r", 1, 0, 0, (7, 0), finish="stop"))
    assert cut_off.reasoning_tokens == 1
    assert _choice(lab).reasoning_tokens is None


def test_logprobs_may_be_told_of_the_token_that_ends_a_choice(lab):
    """Its text is not shown. Where a stop string came first, it ended nothing."""
    for explains, stop, told in ((False, (), [5]), (True, (), [5, 7]), (True, ("af",), [])):
        choice = Choice(0, lab.request(logprobs=0, explains_end=explains, stop=stop), lab.vocabulary)
        logprobs = (TokenLogprobs(-0.5), TokenLogprobs(-0.25))
        delta = choice.take(TokenItem("r", 1, 0, 0, (5, 7), logprobs, "stop"))
        assert [token.token for token in delta.tokens] == told
        assert delta.text == ("" if stop else "af")
        assert delta.finish == "stop"
