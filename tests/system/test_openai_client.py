"""Promises to users of the official `openai` client, with real prefill and decode workers.

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
    """The finish reason of each choice: one, in its last chunk."""
    told: dict[int, list[Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        told.setdefault(choice.index, []).append(choice.finish_reason)
    assert all(not any(reasons[:-1]) for reasons in told.values()), "something came after the end"
    return {index: reasons[-1:] for index, reasons in told.items()}


def counts(usage: Any) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def test_the_model_is_listed_and_found(service: Any) -> None:
    model, adapter = service.client.models.list().data
    assert service.client.models.retrieve("smollm2") == model
    assert (model.id, adapter.id) == ("smollm2", "red")


def test_usage_is_that_of_the_tokens(chat: Callable[..., Any], complete: Callable[..., Any]) -> None:
    """Streamed, it comes in a last chunk without choices; all others have none."""
    ids = {"prompt": list(range(100, 150)), "max_tokens": 7, "extra_body": {"ignore_eos": True}}
    assert counts(complete(**ids, **GREEDY).usage) == (50, 7, 57)
    assert complete(**ids, **GREEDY).usage.prompt_tokens_details.cached_tokens == 48, "three blocks of 16 are cached"
    for create, ask in ((complete, ids), (chat, {"messages": QUESTION, "max_completion_tokens": 7})):
        chunks = list(create(stream=True, stream_options=WITH_USAGE, **ask, **GREEDY))
        assert counts(chunks[-1].usage) == counts(create(**ask, **GREEDY).usage)
        assert chunks[-1].choices == []
        assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])
    assert all(chunk.usage is None for chunk in chat(messages=QUESTION, max_tokens=2, stream=True, **GREEDY))


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


@pytest.mark.parametrize("call", ["complete", "chat"])
def test_choices_differ_and_repeat_by_seed(request: pytest.FixtureRequest, call: str) -> None:
    create = request.getfixturevalue(call)
    prompt = {"prompt": "Once upon a time"} if call == "complete" else {"messages": QUESTION}
    ask = {**prompt, "max_tokens": 12, "n": 3, **SAMPLED}

    def chunks(**options: Any) -> list[Any]:
        return list(create(stream=True, stream_options=WITH_USAGE, **ask | options))

    whole, streamed, other = create(**ask), chunks(), chunks(seed=6)
    choices = [texts(streamed, index) for index in range(3)]
    assert len(set(choices)) == 3
    complete = [choice.text if call == "complete" else choice.message.content for choice in whole.choices]
    assert complete == choices
    assert [texts(other, index) for index in range(3)] != choices
    assert sorted(finishes(streamed)) == [0, 1, 2]
    assert counts(streamed[-1].usage) == counts(whole.usage)


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


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": "gpt-7"}, openai.NotFoundError, "model"),
        ({"messages": [{"role": 5, "content": "hi"}]}, openai.BadRequestError, "messages[0].role"),
        ({"messages": QUESTION * 500, "stream": True}, openai.BadRequestError, "messages"),
    ],
)
def test_bad_requests_are_errors_of_openais_kinds(
    service: Any, chat: Callable[..., Any], change: Any, error: type[openai.APIStatusError], param: str
) -> None:
    before = [record["id"] for record in service.state()["requests"]]
    with pytest.raises(error) as raised:
        chat(**{"model": "smollm2", "messages": QUESTION, **change})
    assert (type(raised.value), raised.value.body["param"]) == (error, param)  # type: ignore[index,call-overload]
    assert [record["id"] for record in service.state()["requests"]] == before, "no worker has seen it"


def test_a_deadline_cuts_off_an_answer_and_without_a_token_is_a_typed_error(
    service: Any, complete: Callable[..., Any]
) -> None:
    ask: Any = {"prompt": "A long story:", "extra_headers": {"x-legato-deadline": "5s"}, **ENDLESS}
    (whole,) = complete(**ask).choices
    chunks = list(complete(stream=True, **ask))
    assert whole.text
    assert texts(chunks, 0)
    for last in (whole, chunks[-1].choices[0]):
        assert (last.finish_reason, last.stop_reason) == ("length", "deadline")
    with pytest.raises(openai.APIStatusError) as raised:
        complete(**ask | {"extra_headers": {"x-legato-deadline": "1ms"}})
    assert (raised.value.status_code, raised.value.code) == (504, "deadline_exceeded")
    service.until_idle()


@pytest.mark.parametrize(
    ("call", "ask"),
    [
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
