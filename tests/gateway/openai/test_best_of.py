"""`best_of`: the likeliest of the answers that were made are told, as if no others had been."""

from served_texts import served

from legato_gateway.request import Delta, TokenText
from legato_protocol.stream import TokenLogprobs


def said(choice, text, *logprobs, finish="stop"):
    """A choice whose tokens have these log probabilities."""
    tokens = [TokenText(ord("x"), "x", b"x", TokenLogprobs(logprob, ()), at) for at, logprob in enumerate(logprobs)]
    half = len(tokens) // 2
    ids = tuple(token.token for token in tokens)
    first = Delta(choice, text, tuple(tokens[:half]), None, ids[:half])
    return [first, Delta(choice, "", tuple(tokens[half:]), finish, ids[half:])]


ANSWERS = [
    said(0, "long and likely enough", -1.0, -1.0, -1.0, -1.0),
    said(1, "short", -1.5),
    said(2, "likeliest", -0.5, -0.7, finish="length"),
    said(3, "nothing"),
    said(4, "as likely as the first", -0.5, -1.5),
]


def script(gateway, answers=ANSWERS):
    gateway.script(*(delta for answer in answers for delta in answer))


async def test_the_best_by_mean_come_first_and_are_numbered_anew(gateway):
    script(gateway)
    answer = (await gateway.complete(n=3, best_of=5)).json()
    told = [(choice["index"], choice["text"], choice["finish_reason"]) for choice in answer["choices"]]
    assert told[0] == (0, "likeliest", "length")
    assert told[1:] == [(1, "long and likely enough", "stop"), (2, "as likely as the first", "stop")]
    assert all(choice["logprobs"] is None for choice in answer["choices"]), "nobody asked for them"
    (request,) = gateway.relay.requests
    assert (request.choices, request.params.logprobs) == (5, 0)
    assert answer["usage"]["completion_tokens"] == 10, "all that was made has cost"


async def test_one_is_told_where_n_is_not_given(gateway):
    script(gateway)
    answer = (await gateway.complete(best_of=5, logprobs=2)).json()
    (choice,) = answer["choices"]
    assert (choice["index"], choice["text"]) == (0, "likeliest")
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.7]
    assert gateway.relay.requests[0].params.logprobs == 2


async def test_an_answer_of_no_tokens_is_told_if_it_has_to_be(gateway):
    script(gateway, [said(0, "nothing"), said(1, "unlikely", -9.0), said(2, "no more")])
    answer = (await gateway.complete(n=2, best_of=3)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["unlikely", "nothing"]


async def test_as_many_as_are_told_are_told_as_they_come(gateway):
    script(gateway)
    answer = (await gateway.complete(n=5, best_of=5)).json()
    assert [choice["text"] for choice in answer["choices"]] == [answer[0].text for answer in ANSWERS]
    assert gateway.relay.requests[0].params.logprobs is None
    assert (await gateway.complete(n=2, best_of=2, stream=True)).status_code == 200


async def test_each_prompt_has_its_best(gateway):
    """With the prompt that it echoes, and its tokens."""
    gateway.relay.script = lambda request: [
        delta
        for choice in (0, 1)
        for delta in said(choice, f"{choice}", -1.0 if bytes(request.prompt) == b"%d" % choice else -2.0)
    ]
    fields = {"prompt": ["0", "1"], "best_of": 2, "echo": True, "return_token_ids": True}
    answer = (await gateway.complete(**fields)).json()
    told = [(choice["index"], choice["text"], choice["prompt_token_ids"]) for choice in answer["choices"]]
    assert told == [(0, "00", [ord("0")]), (1, "11", [ord("1")])]


async def test_workers_that_make_them_are_asked_for_their_log_probabilities(lab):
    """All are equally likely to a scripted worker: the first that were made are told, with all of their fields."""
    async with served(lab, "one", "two", "three") as gateway:
        answer = await gateway.ask("completions", n=2, best_of=3, stop="e", return_token_ids=True)
        assert answer.texts == {0: "on", 1: "two"}
        assert answer.token_ids[0] == gateway.tokens.encode("one")
        made = len(gateway.tokens.encode("one" + "two" + "thre")) + 1
        assert answer.usages[-1][1]["completion_tokens"] == made
