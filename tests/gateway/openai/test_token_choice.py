"""`allowed_token_ids` and `bad_words` reach workers as tokens, and what leaves nothing to say is refused."""

from typing import Any

from legato_gateway.openai import token_choice
from legato_protocol.sampling_params import REASONING, SamplingParams, later_params

END = 256
CHOICE = {"structured_outputs": {"choice": ["a", "b"]}}


async def asked(gateway: Any, **fields: Any) -> Any:
    """The parameters that a worker is given."""
    answer = await gateway.chat(**fields)
    assert answer.status_code == 200, answer.text
    return gateway.relay.requests[-1].params


async def test_they_reach_workers_as_tokens(gateway):
    params = await asked(gateway, allowed_token_ids=[65, 66, 65, END], bad_words=["ab", " a", "ab"])
    assert params.allowed_token_ids == (65, 66, END)
    assert params.bad_words == ((97, 98), (97,))
    assert later_params(params) == ("allowed_token_ids", "bad_words")


async def test_completions_take_them_too(gateway):
    await gateway.complete(prompt="hi", allowed_token_ids=[65, 66], bad_words=["B"])
    params = gateway.relay.requests[0].params
    assert (params.allowed_token_ids, params.bad_words) == ((65, 66), ((66,),))


async def test_without_them_any_worker_will_do(gateway):
    assert later_params(await asked(gateway, bad_words=[])) == ()
    assert later_params(await asked(gateway, allowed_token_ids=None, bad_words=None)) == ()


async def test_a_word_is_forbidden_after_a_space_where_that_is_other_tokens(gateway, monkeypatch):
    """As in most vocabularies: the space belongs to the word's first token."""
    tokens = {"Paris": [80, 81], " Paris": [82], "é": [83, 84], " é": [32, 83, 84]}
    monkeypatch.setattr(gateway.tokens, "encode", lambda text, *_: tokens.get(text, [1]))
    params = await asked(gateway, bad_words=["  Paris", "é"])
    assert params.bad_words == ((80, 81), (82,), (83, 84))


NONE_LEFT = "allowed_token_ids: no token is left that an answer could begin with"
NO_END = "allowed_token_ids has none of the tokens that end an answer, [256]: no answer could end"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"allowed_token_ids": [3, 257]}, "not a valid token id in allowed_token_ids: 257 (0 to 256)"),
    ({"bad_words": ["x", "  "]}, "not a valid word in bad_words: '  ' (it has no tokens)"),
    ({"bad_words": ["x" * 65]}, f"not a valid word in bad_words: '{'x' * 40}' has 65 tokens (1 to 64)"),
    ({"allowed_token_ids": [97], "bad_words": ["a"]}, NONE_LEFT),
    ({"allowed_token_ids": [END], "min_tokens": 1}, NONE_LEFT),
    ({"allowed_token_ids": [97, 98], **CHOICE}, NO_END),
]


async def test_what_cannot_be_obeyed_is_named(gateway):
    for fields, text in WRONG:
        answer = await gateway.chat(**fields)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["message"]) == (next(iter(fields)), text)
    assert gateway.relay.generations == []


def test_a_bound_of_reasoning_lets_an_answer_go_on():
    """With `ignore_eos` nothing has to end it."""
    params = SamplingParams(max_tokens=9, seed=1, grammar="{}", grammar_kind=REASONING, bad_words=((97,),))
    token_choice._check_something_is_left(params, 257)


async def test_what_can_be_obeyed_together_is_taken(gateway):
    params = await asked(gateway, allowed_token_ids=[97, 98, END], bad_words=["a"], **CHOICE)
    assert params.grammar
    assert params.bad_words == ((97,),)
    assert (await asked(gateway, allowed_token_ids=[END])).allowed_token_ids == (END,)
