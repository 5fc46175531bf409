"""What users of the official `openai` client rely on, against real workers with prefill and decode apart.

Each field and each refusal has its tests in tests/gateway/openai, against scripted workers.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest

QUESTION: Any = [{"role": "user", "content": "Name the capital of France."}]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}
SAMPLED: dict[str, Any] = {"model": "smollm2", "temperature": 1.0, "seed": 5}
COUNTING = "1, 2, 3, 4, 5,"
JAPANESE = "日本の首都は東京です。"  # of more tokens than characters
ENDLESS: dict[str, Any] = {"model": "smollm2", "max_tokens": 3500, "extra_body": {"ignore_eos": True}}
WITH_USAGE = {"include_usage": True}


@pytest.fixture
def chat(service: Any) -> Callable[..., Any]:
    return service.client.chat.completions.create


@pytest.fixture
def complete(service: Any) -> Callable[..., Any]:
    return service.client.completions.create


def texts(chunks: Sequence[Any], index: int = 0) -> str:
    """The text of one choice of a stream."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join((choice.delta.content if hasattr(choice, "delta") else choice.text) or "" for choice in choices)


def finishes(chunks: Sequence[Any]) -> dict[int, list[str]]:
    """What ended each choice: one reason, in the last chunk of the choice."""
    told: dict[int, list[Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        told.setdefault(choice.index, []).append(choice.finish_reason)
    assert all(not any(reasons[:-1]) for reasons in told.values()), "something came after the end"
    return {index: reasons[-1:] for index, reasons in told.items()}


def counts(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


# ── answers and streams ──


def test_the_model_is_listed_and_found(service: Any) -> None:
    model, adapter = service.client.models.list().data
    assert service.client.models.retrieve("smollm2") == model
    assert (model.id, adapter.id) == ("smollm2", "red")


@pytest.mark.parametrize("stream", [False, True])
def test_a_continued_message_is_what_the_model_would_have_said(chat: Callable[..., Any], stream: bool) -> None:
    """To the token: the prompt is that of the whole answer and its first tokens, and the rest is its other tokens."""
    ask = {"temperature": 0, "model": "smollm2", "max_tokens": 24}
    ask["extra_body"] = {"return_token_ids": True, "ignore_eos": True}
    whole = chat(messages=QUESTION, **ask)
    text, ids = whole.choices[0].message.content, whole.choices[0].token_ids
    assert whole.usage.completion_tokens == len(ids)
    assert whole.usage.prompt_tokens == len(whole.prompt_token_ids)
    said = text[: text.index(" ", len(text) // 3)]  # tokens begin with the space before a word
    ask["extra_body"] |= {"continue_final_message": True, "echo": True}
    answer = chat(messages=[*QUESTION, {"role": "assistant", "content": said}], stream=stream, **ask)
    if stream:
        chunks = list(answer)
        prompt, said = chunks[0].prompt_token_ids, texts(chunks)
        found = [id for chunk in chunks for id in getattr(chunk.choices[0], "token_ids", ())]
    else:
        prompt, said = answer.prompt_token_ids, answer.choices[0].message.content
        found = answer.choices[0].token_ids
    assert said.startswith(text)
    first = len(prompt) - len(whole.prompt_token_ids)
    assert first > 0
    assert prompt == whole.prompt_token_ids + ids[:first]
    assert found[: len(ids) - first] == ids[first:]


def test_a_streamed_chat_is_the_whole_one_in_pieces(chat: Callable[..., Any]) -> None:
    whole = chat(messages=QUESTION, max_tokens=30, **GREEDY)
    chunks = list(chat(messages=QUESTION, max_tokens=30, stream=True, **GREEDY))
    assert texts(chunks) == whole.choices[0].message.content
    assert [choice.delta.role for chunk in chunks[:1] for choice in chunk.choices] == ["assistant"]
    assert finishes(chunks) == {0: [whole.choices[0].finish_reason]}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks), "nobody asked for usage"


def test_usage_is_that_of_the_tokens(chat: Callable[..., Any], complete: Callable[..., Any]) -> None:
    """Streamed, it comes in a last chunk without choices; all others have none."""
    ids = list(range(100, 150))
    whole = complete(prompt=ids, max_tokens=7, extra_body={"ignore_eos": True}, **GREEDY)
    assert counts(whole.usage) == (50, 7, 57)
    again = complete(prompt=ids, max_tokens=7, extra_body={"ignore_eos": True}, **GREEDY)
    assert again.usage.prompt_tokens_details.cached_tokens == 48, "three blocks of 16 are cached"
    for create, ask in (
        (complete, {"prompt": ids, "max_tokens": 7}),
        (chat, {"messages": QUESTION, "max_completion_tokens": 7}),
    ):
        chunks = list(create(stream=True, stream_options=WITH_USAGE, **ask, **GREEDY))
        assert counts(chunks[-1].usage) == counts(create(**ask, **GREEDY).usage)
        assert chunks[-1].choices == []
        assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])


def test_characters_of_several_tokens_are_whole_and_stand_where_they_begin(complete: Callable[..., Any]) -> None:
    ask: Any = {"prompt": COUNTING, "logprobs": 0, "max_tokens": 60, "extra_body": {"guided_choice": [JAPANESE]}}
    choice = complete(**ask, **GREEDY).choices[0]
    assert (choice.text, choice.finish_reason) == (JAPANESE, "stop")
    tokens = list(zip(choice.logprobs.text_offset, choice.logprobs.tokens, strict=True))
    assert any("\ufffd" in token for _, token in tokens), "no character has several tokens"
    tokens = [(at, token) for at, token in tokens if "\ufffd" not in token and at < len(choice.text)]
    assert tokens
    assert all(choice.text[at:].startswith(token) for at, token in tokens)
    chunks = list(complete(stream=True, **ask, **GREEDY))
    assert texts(chunks) == JAPANESE
    assert "\ufffd" not in texts(chunks[:-1]), "half a character was sent"
    cut = list(complete(stream=True, stop=["東京"], **ask, **GREEDY))
    assert (texts(cut), finishes(cut)) == (JAPANESE[: JAPANESE.index("東京")], {0: ["stop"]})


# ── log-probabilities ──


def test_logprobs_of_a_chat_are_those_of_the_tokens_shown(chat: Callable[..., Any]) -> None:
    ask = {"messages": QUESTION, "logprobs": True, "top_logprobs": 3, "max_tokens": 5, **GREEDY}
    answer = chat(**ask)
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens == 5
    assert b"".join(bytes(t.bytes) for t in content).decode() == answer.choices[0].message.content
    for token in content:
        assert token.top_logprobs[0].token == token.token  # greedy takes the best one
        assert token.top_logprobs[0].logprob == token.logprob <= 0
        assert [t.logprob for t in token.top_logprobs] == sorted((t.logprob for t in token.top_logprobs), reverse=True)
    choices = [choice for chunk in chat(stream=True, **ask) for choice in chunk.choices if choice.logprobs]
    streamed = [token for choice in choices for token in choice.logprobs.content]
    assert [t.token for t in streamed] == [t.token for t in content]
    assert [t.logprob for t in streamed] == pytest.approx([t.logprob for t in content], abs=1e-3)


def test_logprobs_of_a_completion_stand_at_the_places_of_its_text(complete: Callable[..., Any]) -> None:
    ask = {"prompt": COUNTING, "logprobs": 2, "max_tokens": 8, **GREEDY}
    choice = complete(**ask).choices[0]
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == 8
    assert [choice.text[at:][: len(token)] for at, token in zip(found.text_offset, found.tokens, strict=True)] == (
        found.tokens
    )
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert len(top) == 2
        assert top[token] == logprob == max(top.values())
    chunks = list(complete(stream=True, **ask))
    streamed = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [token for part in streamed for token in part.tokens] == found.tokens
    assert [at for part in streamed for at in part.text_offset] == found.text_offset


# ── stop, n and seed ──


def test_stop_strings_cut_the_text_wherever_tokens_end(chat: Callable[..., Any], complete: Callable[..., Any]) -> None:
    """The one that comes first in the text counts; with it the sequence ends, streamed or not."""
    for create, ask in ((complete, {"prompt": COUNTING}), (chat, {"messages": QUESTION})):
        ask |= {"max_tokens": 30, "extra_body": {"ignore_eos": True}, **GREEDY}
        whole = list(create(stream=True, stream_options=WITH_USAGE, **ask))
        text = texts(whole)
        first, later = text[8:12], text[20:24]
        expected = text[: text.index(first)]
        for stop in (first, [later, "never there", first]):
            cut = list(create(stop=stop, stream=True, stream_options=WITH_USAGE, **ask))
            assert (texts(cut), finishes(cut)) == (expected, {0: ["stop"]})
            assert cut[-1].usage.completion_tokens < whole[-1].usage.completion_tokens
        assert create(stop=first, **ask).choices[0].finish_reason == "stop"
        assert texts(list(create(stop=["never there"], stream=True, **ask))) == text


def test_choices_differ_and_repeat_by_seed(complete: Callable[..., Any]) -> None:
    ask = {"prompt": "Once upon a time", "max_tokens": 12, "n": 3, **SAMPLED}
    answer = complete(**ask)
    first = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(first)) == 3
    assert answer.usage.completion_tokens <= 36
    assert [choice.text for choice in complete(**ask).choices] == first
    assert [choice.text for choice in complete(**ask | {"seed": 6}).choices] != first
    chunks = list(complete(stream=True, stream_options=WITH_USAGE, **ask))
    assert [texts(chunks, index) for index in range(3)] == first
    assert sorted(finishes(chunks)) == [0, 1, 2]
    assert counts(chunks[-1].usage) == counts(answer.usage)


def test_choices_of_a_chat(chat: Callable[..., Any]) -> None:
    ask = {"messages": QUESTION, "max_tokens": 10, "n": 3, **SAMPLED}
    first = [choice.message.content for choice in chat(**ask).choices]
    chunks = list(chat(stream=True, **ask))
    assert [texts(chunks, index) for index in range(3)] == first
    roles = [choice.index for chunk in chunks for choice in chunk.choices if choice.delta.role]
    assert sorted(roles) == [0, 1, 2], "each choice begins once"


def test_the_best_of_several_is_the_likeliest_of_them(complete: Callable[..., Any]) -> None:
    ask = {**SAMPLED, "prompt": "The weather today is", "max_tokens": 12}
    made = complete(n=4, logprobs=0, **ask).choices
    likeliest = max(made, key=lambda choice: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs))
    best = complete(extra_body={"best_of": 4}, **ask)
    assert [choice.text for choice in best.choices] == [likeliest.text]
    assert best.usage.completion_tokens > 12


def test_several_prompts_have_their_choices_in_order_and_echo_them(complete: Callable[..., Any]) -> None:
    prompts, ask = [COUNTING, "The sky is"], {"max_tokens": 6, "n": 2, **SAMPLED}
    together = complete(prompt=prompts, echo=True, **ask).choices
    alone = [prompt + choice.text for prompt in prompts for choice in complete(prompt=prompt, **ask).choices]
    assert [choice.index for choice in together] == [0, 1, 2, 3]
    assert [choice.text for choice in together] == alone


def test_a_choice_that_a_stop_string_ends_is_computed_no_further(service: Any, complete: Callable[..., Any]) -> None:
    """Its worker runs the others on without it."""
    ask: Any = {"prompt": "My favourite animals are", "n": 3, **SAMPLED, **ENDLESS | {"max_tokens": 400}}
    whole = [choice.text for choice in complete(**ask).choices]
    cuts = (whole[1][start : start + 16] for start in range(10, len(whole[1]) // 2))
    stop = next(text for text in cuts if text not in whole[0] + whole[2])
    service.until_idle()
    stream, chunks = complete(stop=[stop], stream=True, **ask), []
    while not (chunks and chunks[-1].choices[0].finish_reason):
        chunks.append(next(stream))
    service.until(lambda: sum(w["running"] for w in service.workers("decode")) == 2, "two of three go on", 0.002)
    chunks += stream
    assert [texts(chunks, index) for index in range(3)] == [whole[0], whole[1][: whole[1].index(stop)], whole[2]]
    assert finishes(chunks) == {0: ["length"], 1: ["stop"], 2: ["length"]}
    service.until_idle()


# ── errors ──

STATUS = openai.BadRequestError
BAD: Any = [
    ("chat", {"model": "gpt-7"}, openai.NotFoundError, "model"),
    ("chat", {"messages": [{"role": 5, "content": "hi"}]}, STATUS, "messages[0].role"),
    ("chat", {"messages": [{"role": "user", "content": "word " * 5000}]}, STATUS, "messages"),
    ("chat", {"logit_bias": {"1000000": 5}}, STATUS, "logit_bias"),
    ("complete", {"model": ""}, openai.NotFoundError, "model"),
    ("complete", {"prompt": [10**6]}, STATUS, "prompt"),
    ("complete", {"prompt": "hi", "extra_headers": {"x-legato-deadline": "soon"}}, STATUS, "x-legato-deadline"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("call", "change", "error", "param"), BAD)
def test_bad_requests_are_errors_of_openais_kinds(
    request: pytest.FixtureRequest,
    service: Any,
    call: str,
    change: Any,
    error: type[Exception],
    param: str,
    stream: bool,
) -> None:
    before = [record["id"] for record in service.state()["requests"]]
    given = {"messages": QUESTION} if call == "chat" else {"prompt": COUNTING}
    with pytest.raises(error) as raised:
        request.getfixturevalue(call)(**{"model": "smollm2", "stream": stream, **given, **change})
    assert type(raised.value) is error
    assert raised.value.body["param"] == param  # type: ignore[attr-defined]
    assert [record["id"] for record in service.state()["requests"]] == before, "no worker has seen it"


def test_what_is_not_served_says_so(service: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="embedding"):
        service.client.embeddings.create(model="smollm2", input="x")
    with pytest.raises(openai.NotFoundError):
        service.client.models.retrieve("gpt-7")
    with pytest.raises(openai.NotFoundError):
        service.client.responses.retrieve("resp_of-another-service")


def test_a_deadline_ends_a_request_with_a_typed_error(service: Any, complete: Callable[..., Any]) -> None:
    ask: Any = {"prompt": "A long story:", "extra_headers": {"x-legato-deadline": "1s"}, **ENDLESS}
    with pytest.raises(openai.APIStatusError) as raised:
        complete(**ask)
    assert raised.value.status_code == 504
    stream = complete(stream=True, **ask)
    with pytest.raises(openai.APIError) as ended:
        list(stream)
    assert ended.value.code == "deadline_exceeded"
    service.until_idle()


# ── cancelling ──


@pytest.mark.parametrize(
    ("call", "ask"),
    [
        ("complete", {"prompt": "A long story:", "n": 1}),
        ("complete", {"prompt": "A long story:", "n": 3}),
        ("chat", {"messages": QUESTION, "n": 1}),
    ],
)
def test_closing_a_stream_stops_its_work_and_frees_its_blocks(
    request: pytest.FixtureRequest, service: Any, call: str, ask: Any
) -> None:
    with request.getfixturevalue(call)(stream=True, **ask, **ENDLESS) as stream:
        id = next(stream).id
        service.until(lambda: any(worker["running"] for worker in service.workers()), "a worker says that it runs")
    service.until_idle()
    record = service.record(id)
    assert record["finish"].split(",") == ["cancelled"] * ask["n"]
    assert record["decode"] in {worker["worker"] for worker in service.workers("decode")}


def test_a_client_that_leaves_while_its_prompt_is_computed(service: Any) -> None:
    """No byte of an answer has come by then; the prefill worker stops, and nothing is left on either worker."""
    seen = {record["id"] for record in service.state()["requests"]}

    def record() -> dict[str, Any] | None:
        return next((r for r in service.state()["requests"] if r["id"] not in seen), None)

    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="unused", max_retries=0) as client:
            prompt = [1000 + i % 7919 for i in range(3900)]
            asked = asyncio.create_task(client.completions.create(model="smollm2", prompt=prompt, max_tokens=20))
            begun = await asyncio.to_thread(
                service.until,
                lambda: (r := record()) and r["stage"] == "prefilling",
                lambda: f"its prompt is computed: {record()}, {asked}",
                0.002,
            )
            assert begun
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked

    asyncio.run(leave())
    service.until_idle()
    found = record()
    assert found is not None
    assert found["finish"] == "cancelled"


def test_many_clients_at_once_each_get_their_own_answer(service: Any, complete: Callable[..., Any]) -> None:
    ask: Any = {"max_tokens": 5, **GREEDY}
    prompts = [f"Repeat the number {number}:" for number in range(11, 23)]
    alone = [complete(prompt=prompt, **ask).choices[0].text for prompt in prompts]
    assert len(set(alone)) > 6

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="unused", max_retries=0) as client:

            async def one(prompt: str) -> str:
                stream = await client.completions.create(prompt=prompt, stream=True, **ask)
                return "".join([choice.text async for chunk in stream for choice in chunk.choices])

            return await asyncio.gather(*map(one, prompts))

    assert asyncio.run(ask_all()) == alone
