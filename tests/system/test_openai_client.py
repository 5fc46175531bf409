"""What users of the official `openai` client rely on, against one running service with prefill and decode apart."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest

QUESTION = [{"role": "user", "content": "Name the capital of France."}]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}
SAMPLED: dict[str, Any] = {"model": "smollm2", "temperature": 1.0, "seed": 5}
COUNTING = "1, 2, 3, 4, 5,"
JAPANESE = "日本の首都は東京です。" * 4
ENDLESS: dict[str, Any] = {"model": "smollm2", "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
WITH_USAGE = {"include_usage": True}


@pytest.fixture(scope="module")
def service(shared_service: Callable[..., Any]) -> Any:
    return shared_service(chunk=64)


@pytest.fixture
def chat(service: Any) -> Callable[..., Any]:
    return service.client.chat.completions.create


@pytest.fixture
def complete(service: Any) -> Callable[..., Any]:
    return service.client.completions.create


def contents(chunks: Sequence[Any], index: int = 0) -> str:
    """The text of one choice of a streamed chat."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def texts(chunks: Sequence[Any], index: int = 0) -> str:
    """The text of one choice of a streamed completion."""
    return "".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == index)


def finishes(chunks: Sequence[Any]) -> dict[int, list[str]]:
    """What ended each choice: one reason, in the last chunk of the choice."""
    told: dict[int, list[Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        told.setdefault(choice.index, []).append(choice.finish_reason)
    assert all(not any(reasons[:-1]) for reasons in told.values()), "something came after the end"
    return {index: reasons[-1:] for index, reasons in told.items()}


def counts(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


# ── token ids ──


@pytest.mark.parametrize("stream", [False, True])
def test_a_continued_message_is_what_the_model_would_have_said(chat: Callable[..., Any], stream: bool) -> None:
    """To the token: the prompt is that of the whole answer and its first tokens, and the rest is its other tokens."""
    ask = {"temperature": 0, "model": "smollm2", "extra_body": {"return_token_ids": True}}
    whole = chat(messages=QUESTION, max_tokens=24, **ask)
    text, ids = whole.choices[0].message.content, whole.choices[0].token_ids
    assert whole.usage.completion_tokens == len(ids)
    assert whole.usage.prompt_tokens == len(whole.prompt_token_ids)

    said = text[: text.index(" ", len(text) // 3)]  # tokens begin with the space before a word
    ask["extra_body"] = {"return_token_ids": True, "continue_final_message": True, "echo": True}
    messages = [*QUESTION, {"role": "assistant", "content": said}]
    answer = chat(messages=messages, max_tokens=24, stream=stream, **ask)
    if stream:
        chunks = list(answer)
        prompt = chunks[0].prompt_token_ids
        found = [id for chunk in chunks for id in getattr(chunk.choices[0], "token_ids", ())]
        assert contents(chunks).startswith(text)
    else:
        prompt, found = answer.prompt_token_ids, answer.choices[0].token_ids
        assert answer.choices[0].message.content.startswith(text)
    first = len(prompt) - len(whole.prompt_token_ids)
    assert first > 0
    assert prompt == whole.prompt_token_ids + ids[:first]
    assert found[: len(ids) - first] == ids[first:]


def test_the_best_of_several_is_the_likeliest_of_them(complete: Callable[..., Any]) -> None:
    ask = {**SAMPLED, "prompt": "The weather today is", "max_tokens": 12}
    made = complete(n=4, logprobs=0, **ask).choices
    likeliest = max(made, key=lambda choice: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs))
    best = complete(extra_body={"best_of": 4}, **ask)
    assert [choice.text for choice in best.choices] == [likeliest.text]
    assert best.usage.completion_tokens > 12


# ── streaming and usage ──


def test_the_model_is_listed_and_found(service: Any) -> None:
    (model,) = service.client.models.list().data
    assert service.client.models.retrieve("smollm2") == model
    assert model.id == "smollm2"


def test_a_streamed_chat_is_the_whole_one_in_pieces(chat: Callable[..., Any]) -> None:
    whole = chat(messages=QUESTION, **GREEDY)
    chunks = list(chat(messages=QUESTION, stream=True, **GREEDY))
    assert "Paris" in whole.choices[0].message.content
    assert contents(chunks) == whole.choices[0].message.content
    assert [choice.delta.role for chunk in chunks[:1] for choice in chunk.choices] == ["assistant"]
    assert finishes(chunks) == {0: ["stop"]} == {0: [whole.choices[0].finish_reason]}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks), "nobody asked for usage"


TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def test_the_model_is_told_of_tools_and_of_what_they_returned(chat: Callable[..., Any]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    asked = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "It is raining in Paris."},
    ]
    ask = {"messages": asked, "tools": [TOOL], "max_tokens": 40, **GREEDY}
    whole = chat(**ask)
    assert "rain" in (whole.choices[0].message.content or "")
    assert contents(list(chat(stream=True, **ask))) == whole.choices[0].message.content
    without = chat(**ask | {"tools": []})
    assert whole.usage.prompt_tokens > without.usage.prompt_tokens + 50


def test_a_streamed_completion_of_multi_byte_text_has_whole_characters_only(complete: Callable[..., Any]) -> None:
    ask = {"prompt": JAPANESE, "max_tokens": 40, **GREEDY}
    whole = complete(**ask).choices[0].text
    chunks = list(complete(stream=True, **ask))
    assert texts(chunks) == whole
    assert len(whole.encode()) > len(whole), "there is no multi-byte character to see"
    assert "\ufffd" not in texts(chunks[:-1]), "half a character was sent"
    assert finishes(chunks) == {0: ["length"]}


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


# ── logprobs ──


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
    chunks = list(chat(stream=True, **ask))
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.logprobs]
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


def test_tokens_that_share_a_character_stand_where_it_begins(complete: Callable[..., Any]) -> None:
    choice = complete(prompt=JAPANESE, logprobs=0, max_tokens=20, **GREEDY).choices[0]
    tokens = list(zip(choice.logprobs.text_offset, choice.logprobs.tokens, strict=True))
    assert any("\ufffd" in token for _, token in tokens), "no character has several tokens"
    assert any("\ufffd" not in token for _, token in tokens)
    assert all(choice.text[at:].startswith(token) for at, token in tokens if "\ufffd" not in token)


# ── stop ──


@pytest.mark.parametrize("prompt", [COUNTING, JAPANESE], ids=["ascii", "multi-byte"])
def test_stop_strings_cut_the_text_wherever_tokens_end(complete: Callable[..., Any], prompt: str) -> None:
    """The one that comes first in the text counts; with it the sequence ends, streamed or not."""
    ask = {"prompt": prompt, "max_tokens": 30, **GREEDY}
    whole = complete(**ask)
    text = whole.choices[0].text
    first, later = text[5:8], text[9:11]
    expected = text[: text.index(first)]
    for stop in (first, [later, "never there", first]):
        cut = complete(stop=stop, **ask)
        assert (cut.choices[0].text, cut.choices[0].finish_reason) == (expected, "stop")
        assert cut.usage.completion_tokens < whole.usage.completion_tokens
        chunks = list(complete(stop=stop, stream=True, **ask))
        assert (texts(chunks), finishes(chunks)) == (expected, {0: ["stop"]})
    assert complete(stop=["never there"], **ask).choices[0].text == text


def test_a_chat_stops_too(chat: Callable[..., Any]) -> None:
    choice = chat(messages=QUESTION, stop=["Paris"], **GREEDY).choices[0]
    whole = chat(messages=QUESTION, **GREEDY).choices[0].message.content
    assert (choice.message.content, choice.finish_reason) == (whole[: whole.index("Paris")], "stop")


# ── n and seed ──


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
    ask = {"messages": QUESTION, "max_tokens": 10, "n": 3, "stop": [" is"], **SAMPLED}
    first = [choice.message.content for choice in chat(**ask).choices]
    assert [choice.message.content for choice in chat(**ask).choices] == first
    chunks = list(chat(stream=True, **ask))
    assert [contents(chunks, index) for index in range(3)] == first
    roles = [choice.index for chunk in chunks for choice in chunk.choices if choice.delta.role]
    assert sorted(roles) == [0, 1, 2], "each choice begins once"


def test_several_prompts_have_their_choices_in_order(complete: Callable[..., Any]) -> None:
    ask = {"max_tokens": 6, "n": 2, **SAMPLED}
    together = complete(prompt=[COUNTING, "The sky is"], **ask).choices
    alone = [choice.text for prompt in (COUNTING, "The sky is") for choice in complete(prompt=prompt, **ask).choices]
    assert [choice.index for choice in together] == [0, 1, 2, 3]
    assert [choice.text for choice in together] == alone


def test_echo_begins_with_the_prompt(complete: Callable[..., Any]) -> None:
    ask = {"prompt": COUNTING, "max_tokens": 4, **GREEDY}
    plain = complete(**ask).choices[0].text
    assert complete(echo=True, **ask).choices[0].text == COUNTING + plain
    assert texts(list(complete(echo=True, stream=True, **ask))) == COUNTING + plain


# ── errors ──

Error = type[openai.APIStatusError]


def refused(service: Any, error: Error, param: str | None, create: Callable[..., Any], **ask: Any) -> str:
    """What the client was told. No worker has seen the request."""
    before = [record["id"] for record in service.state()["requests"]]
    with pytest.raises(error) as raised:
        create(**{"model": "smollm2", **ask})
    assert type(raised.value) is error
    body = raised.value.body
    assert isinstance(body, dict)
    assert body["param"] == param
    assert [record["id"] for record in service.state()["requests"]] == before
    return str(body["message"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": "gpt-7"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": 5, "content": "hi"}]}, openai.BadRequestError, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, openai.BadRequestError, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, openai.BadRequestError, "messages"),
        ({"max_tokens": 5000}, openai.BadRequestError, "messages"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"max_completion_tokens": 10**30}, openai.BadRequestError, "max_completion_tokens"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"stop": ["x"] * 5000}, openai.BadRequestError, "stop"),
        ({"top_logprobs": 3}, openai.BadRequestError, "top_logprobs"),
        ({"logit_bias": {"1000000": 5}}, openai.BadRequestError, "logit_bias"),
        ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, openai.BadRequestError, "tools[0].type"),
        ({"response_format": {"type": "poem"}}, openai.BadRequestError, "response_format.type"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_bad_chats_are_errors_of_openais_kinds(
    service: Any, chat: Callable[..., Any], change: dict[str, Any], error: Error, param: str, stream: bool
) -> None:
    assert refused(service, error, param, chat, **{"messages": QUESTION, "stream": stream, **change})


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": ""}, openai.NotFoundError, "model"),
        ({"prompt": ""}, openai.BadRequestError, "prompt"),
        ({"prompt": []}, openai.BadRequestError, "prompt"),
        ({"prompt": [10**6]}, openai.BadRequestError, "prompt"),
        ({"prompt": "word " * 5000}, openai.BadRequestError, "prompt"),
        ({"max_tokens": -5}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"best_of": 1, "n": 2}, openai.BadRequestError, "best_of"),
        ({"suffix": "the end"}, openai.BadRequestError, "suffix"),
        ({"extra_headers": {"x-legato-deadline": "soon"}}, openai.BadRequestError, "x-legato-deadline"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_bad_completions_are_errors_of_openais_kinds(
    service: Any, complete: Callable[..., Any], change: dict[str, Any], error: Error, param: str
) -> None:
    assert refused(service, error, param, complete, **{"prompt": COUNTING, **change})


def test_what_is_not_served_says_so(service: Any) -> None:
    assert "embedding" in refused(service, openai.BadRequestError, None, service.client.embeddings.create, input="x")
    with pytest.raises(openai.NotFoundError):
        service.client.models.retrieve("gpt-7")
    with pytest.raises(openai.NotFoundError):
        service.client.responses.retrieve("resp_of-another-service")


def test_a_deadline_ends_a_request_with_a_typed_error(service: Any, complete: Callable[..., Any]) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        complete(prompt="A long story:", extra_headers={"x-legato-deadline": "2s"}, **ENDLESS)
    assert raised.value.status_code == 504
    assert "decode" in raised.value.body["message"]
    service.until_idle()


def test_a_deadline_ends_a_stream_with_a_typed_error(service: Any, complete: Callable[..., Any]) -> None:
    stream = complete(prompt="A long story:", stream=True, extra_headers={"x-legato-deadline": "2s"}, **ENDLESS)
    with pytest.raises(openai.APIError) as raised:
        list(stream)
    assert raised.value.code == "deadline_exceeded"
    service.until_idle()


# ── cancelling ──


@pytest.mark.parametrize("n", [1, 3])
def test_closing_a_stream_stops_its_work_and_frees_its_blocks(
    service: Any, complete: Callable[..., Any], n: int
) -> None:
    stream = complete(prompt="A long story:", stream=True, n=n, **ENDLESS)
    id = next(stream).id
    service.until(lambda: any(worker["running"] for worker in service.workers()), "a worker says that it runs")
    stream.close()
    service.until_idle()
    record = service.record(id)
    assert record["finish"].split(",") == ["cancelled"] * n
    assert record["decode"] in {worker["worker"] for worker in service.workers("decode")}


def test_closing_a_streamed_chat_does_too(service: Any, chat: Callable[..., Any]) -> None:
    with chat(messages=QUESTION, stream=True, **ENDLESS) as stream:
        id = next(stream).id
        service.until(lambda: any(worker["running"] for worker in service.workers()), "a worker says that it runs")
    service.until_idle()
    assert service.record(id)["finish"] == "cancelled"


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


def test_many_clients_at_once_each_get_their_own_answer(service: Any) -> None:
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{service.url}/v1", api_key="unused", max_retries=0) as client:

            async def ask(number: int) -> str:
                prompt = f"Repeat the number {number}: {number}, {number}, {number}, {number},"
                stream = await client.completions.create(prompt=prompt, max_tokens=5, stream=True, **GREEDY)
                return "".join([choice.text async for chunk in stream for choice in chunk.choices])

            return await asyncio.gather(*(ask(number) for number in range(11, 23)))

    for number, text in zip(range(11, 23), asyncio.run(ask_all()), strict=True):
        assert str(number) in text
