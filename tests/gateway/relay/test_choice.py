"""One choice's tokens and text, whatever pieces its tokens come in."""

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_gateway.relay.choice import OutputChoice
from legato_gateway.request import TokenText
from legato_gateway.tokenizer.detokenizer import Detokenizer
from legato_protocol.sampling.reasoning import ReasoningTokens
from legato_protocol.wire.stream import TokenItem, TokenLogprobs


def _choice(lab, vocabulary=None, **overrides):
    return OutputChoice(0, lab.request(**overrides), vocabulary or lab.vocabulary)


def _take(choice, tokens, size):
    """Gives these tokens to the choice, `size` at a time until it ends; returns its deltas."""
    deltas = []
    for start in range(0, len(tokens), size):
        if choice.finish is None:
            item = tuple(tokens[start : start + size])
            finish = "length" if start + size >= len(tokens) else None
            deltas.append(choice.take(TokenItem("r", 1, 0, start, item, (TokenLogprobs(-1.0),) * len(item), finish)))
    return [delta for delta in deltas if delta]


@settings(max_examples=times(50), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=40), st.booleans())
def test_repeats_change_nothing(lab, pieces, ends):
    """Items begin at known tokens or at the next one, in any order: the text is that of the tokens once each."""
    tokens = [(7 * index) % 256 for index in range(60)]
    choice, text = _choice(lab), ""
    for start, count in pieces:
        start = min(start, len(choice.tokens))
        delta = choice.take(TokenItem("r", 1, 0, start, tuple(tokens[start : start + count])))
        text += delta.text if delta else ""
    if ends:
        known = len(choice.tokens)
        text += choice.take(TokenItem("r", 1, 0, known, (tokens[known],), finish="length")).text
        assert choice.finish == "length"
    assert choice.tokens == tokens[: len(choice.tokens)]
    assert text == b"".join(map(lab.vocabulary.token_bytes, choice.tokens)).decode()


@pytest.mark.parametrize(("last", "stop"), [(9, "<|x|>"), (8, None)])
def test_a_special_token_that_is_a_stop_string_is_reported_as_one(lab, last, stop):
    """By the text that the client named it by; other ends are the model's own."""
    choice = _choice(lab, special_stops={9: "<|x|>"}, stop=("<|x|>",))
    delta = choice.take(TokenItem("r", 1, 0, 0, (1, 2, last), finish="stop"))
    assert (delta.text, delta.finish, delta.stop) == ("abac", "stop", stop)


@settings(max_examples=times(50), deadline=None)
@given(st.integers(1, 20), st.integers(0, 30), st.integers(1, 6))
def test_a_stop_string_cuts_the_same_text_however_tokens_are_grouped(lab, size, at, length):
    tokens = [(31 * index) % 256 for index in range(40)]
    whole = b"".join(map(lab.vocabulary.token_bytes, tokens)).decode()
    stop = whole[at : at + length]
    choice = _choice(lab, stop=(stop,))
    deltas = _take(choice, tokens, size)
    assert "".join(delta.text for delta in deltas) == whole[: whole.index(stop)]
    assert (choice.finish, deltas[-1].stop) == ("stop", stop)
    assert len(choice.tokens) == -(-(whole.index(stop) + length) // 2)


class Pieces:
    """A vocabulary of these tokens; `hidden` ones show as nothing."""

    def __init__(self, *table, hidden=()):
        self.table = table
        self._shown = [b"" if id in hidden else raw for id, raw in enumerate(table)]

    def detokenizer(self, shown=frozenset(), marked=frozenset()):
        return Detokenizer([raw if id in shown else self._shown[id] for id, raw in enumerate(self.table)])

    def token_bytes(self, id):
        return self.table[id]


PARTY = "🎉".encode()
OWN = {"own_stop_tokens": frozenset({9})}


@pytest.mark.parametrize(
    ("overrides", "items", "text", "stop", "stop_token"),
    [
        pytest.param({"stop": ("never",)}, [(0, 1, 2, 3)], "abac", None, None, id="the last token is not shown"),
        pytest.param(OWN, [(0, 1, 9), (2,)], "", None, 9, id="an end that comes later than its stop token"),
        pytest.param(OWN, [(0,)], "", None, None, id="without a token"),
        pytest.param(
            OWN | {"stop": ("aj",), "include_stop": True}, [(0, 1, 9)], "abaj", "aj", None, id="a stop string before it"
        ),
    ],
)
def test_the_last_delta_names_what_ended_a_choice(lab, overrides, items, text, stop, stop_token):
    choice = _choice(lab, **overrides)
    for index, *tokens in items[:-1]:
        assert choice.take(TokenItem("r", 1, 0, index, tuple(tokens))).stop_token is None
    index, *tokens = items[-1]
    delta = choice.take(TokenItem("r", 1, 0, index, tuple(tokens), finish="stop"))
    assert (delta.text, delta.tokens, delta.finish) == (text, (), "stop")
    assert (delta.stop, delta.stop_token) == (stop, stop_token)
    assert choice.tokens == [token for _, *item in items for token in item]


def test_a_finish_that_comes_late_still_ends_the_choice(lab):
    choice = _choice(lab)
    choice.take(TokenItem("r", 1, 0, 0, (1, 2)))
    assert choice.take(TokenItem("r", 1, 0, 0, (1,), finish="length")) is None
    assert choice.take(TokenItem("r", 1, 0, 1, (2,), finish="length")).finish == "length"


@pytest.mark.parametrize(
    ("stop", "least", "shown"), [("never", 0, ("ab�", "length")), ("�", 1, ("ab", "stop")), ("�", 2, ("ab�", "length"))]
)
def test_the_worker_says_how_a_choice_ended_unless_its_last_text_is_a_stop_string(lab, stop, least, shown):
    choice = _choice(lab, Pieces(b"ab", PARTY[:2]), stop=(stop,), least_tokens=least)
    assert (choice.take(TokenItem("r", 1, 0, 0, (0, 1), finish="length")).text, choice.finish) == shown


PARTS = Pieces(PARTY[:2], PARTY[2:], b"x", b"<|end|>", hidden={3})
WORDS = Pieces(b"ab", b"c", b"EN", b"D", b"z")


@pytest.mark.parametrize("size", [1, 2, 9])
@pytest.mark.parametrize(
    ("vocabulary", "ids", "stop", "text", "offsets"),
    [
        # several tokens of one character stand where it begins; a hidden token moves nothing
        (PARTS, [0, 1, 3, 2, 2], (), "🎉xx", [(0, 0), (1, 0), (3, 1), (2, 1), (2, 2)]),
        # tokens of a stop string are left out, and others wait until it is known that they are not
        (WORDS, [0, 1, 2, 3, 4], ("END",), "abc", [(0, 0), (1, 2)]),
        (WORDS, [0, 1, 2, 4], ("cEND",), "abcENz", [(0, 0), (1, 2), (2, 3), (4, 5)]),
        (WORDS, [0, 1, 2], ("bcEND", "q"), "abcEN", [(0, 0), (1, 2), (2, 3)]),
    ],
)
def test_tokens_stand_where_their_first_character_does(lab, vocabulary, ids, stop, text, offsets, size):
    shown, found = "", []
    for delta in _take(_choice(lab, vocabulary, logprobs=0, stop=stop), ids, size):
        shown += delta.text
        found += [(token.token, token.offset) for token in delta.tokens]
        assert not stop or all(offset < len(shown) for _, offset in found), "explained before it is shown"
    assert (shown, found) == (text, offsets)


def test_tokens_have_their_logprobs_as_they_come(lab):
    """Even one that shows no text yet; one whose worker sent no logprobs has none."""
    choice = _choice(lab, PARTS, logprobs=0)
    one, two = TokenLogprobs(-1.0), TokenLogprobs(-2.0)
    items = [(0, (0,), (one,)), (0, (0, 1), (one, two)), (2, (0,), ())]
    deltas = [choice.take(TokenItem("r", 1, 0, *item)) for item in items]
    assert [(delta.text, *delta.tokens) for delta in deltas] == [
        ("", TokenText(0, "�", PARTY[:2], one, 0)),
        ("🎉", TokenText(1, "��", PARTY[2:], two, 0)),
        ("", TokenText(0, "�", PARTY[:2], None, 1)),
    ]


def test_reasoning_tokens_are_counted_once_and_without_what_ended_the_choice(lab):
    choice, cut_off = (_choice(lab, reasoning=ReasoningTokens(open=1, close=2, open_in_prompt=True)) for _ in range(2))
    assert choice.reasoning_tokens == 0
    choice.take(TokenItem("r", 1, 0, 0, (7, 8)))
    choice.take(TokenItem("r", 1, 0, 1, (8, 9, 2, 7, 7)))
    cut_off.take(TokenItem("r", 1, 0, 0, (7, 0), finish="stop"))
    assert [each.reasoning_tokens for each in (choice, cut_off, _choice(lab))] == [3, 1, None]


@pytest.mark.parametrize(("explains", "stop", "explained"), [(False, (), [5]), (True, (), [5, 7]), (True, ("af",), [])])
def test_the_token_that_ends_a_choice_may_be_explained(lab, explains, stop, explained):
    """Its text is not shown. Where a stop string came first, it ended nothing."""
    choice = _choice(lab, logprobs=0, explains_end=explains, stop=stop)
    delta = choice.take(TokenItem("r", 1, 0, 0, (5, 7), (TokenLogprobs(-0.5), TokenLogprobs(-0.25)), "stop"))
    assert [token.token for token in delta.tokens] == explained
    assert (delta.text, delta.finish) == ("" if stop else "af", "stop")
