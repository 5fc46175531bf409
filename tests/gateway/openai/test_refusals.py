"""Bad requests: a 4xx in OpenAI's shape that names the field, and no worker sees any of it."""

from typing import Any

import openai
import pytest

USER = {"role": "user", "content": "hi"}
HI = '{"role": "user", "content": "hi"}'


async def post(gateway: Any, fields: str) -> Any:
    return await gateway.http.post("/v1/chat/completions", content=f'{{"model": "tiny", {fields}}}'.encode())


def check(gateway: Any, response: Any, status: int, param: str | None, code: str | None = None) -> str:
    assert response.status_code == status, response.text
    assert gateway.relay.generations == []
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["code"]) == (param, code)
    return str(error["message"])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "<|king|>", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [USER] * 2049}, "messages"),
    ({"messages": [USER, {"role": "user", "content": [{"type": "text", "text": ""}] * 2049}]}, "messages[1].content"),
    ({"messages": [{"content": "hi"}]}, "messages[0]"),
    ({"messages": [5]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0].text"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": True, "every": 1}}, "stream_options"),
]


async def test_wrong_values_are_named(gateway):
    for fields, param in WRONG:
        check(gateway, await gateway.chat(**fields), 400, param)


ABSENT: list[tuple[dict[str, Any], str]] = [
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
    ({"documents": [{"title": "t", "text": "x"}]}, "documents"),
    ({"stop_regex": "a+"}, "stop_regex"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
]


INSTEAD = {"chat_template": "is a program", "documents": "into a message", "stop_regex": "structured_outputs"}


async def test_features_that_are_not_there_are_named_and_what_may_be_done_instead(gateway):
    for fields, param in ABSENT:
        message = check(gateway, await gateway.chat(**fields), 400, param, "unsupported_value")
        assert INSTEAD.get(param, "") in message


async def test_a_long_value_of_a_feature_is_refused_and_a_number_out_of_range_is_named(gateway):
    for field in ("moderation", "audio", "modalities"):
        check(gateway, await gateway.chat(**{field: [[]] * 100_000}), 400, field, "unsupported_value")
    for value in ("1e400", "[1e400]", "-1e400", "9" * 200):
        for field in ("tools", "response_format", "tool_choice", "modalities"):
            answer = await post(gateway, f'"messages": [{HI}], "{field}": {value}')
            assert (answer.status_code, answer.json()["error"]["param"][: len(field)]) == (400, field)
        answer = await post(gateway, f'"messages": [{HI[:-1]}, "audio": {value}}}]')
        assert answer.json()["error"]["param"].startswith("messages[0].audio")


async def test_the_value_of_a_feature_is_decoded_only_if_it_is_short(gateway):
    for length, status in ((256, 200), (257, 400)):
        answer = await post(gateway, f'"messages": [{HI}], "audio": [{" " * (length - 2)}]')
        assert answer.status_code == status


async def test_fields_without_effect_or_that_ask_for_nothing_are_taken(gateway):
    nothing = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"]}
    fields = {"metadata": {"a": [[], {}]}, "store": True, "service_tier": "auto", "prompt_cache_key": "x"}
    assert (await gateway.chat(**nothing, **fields)).status_code == 200
    assert (await gateway.chat(messages=[{"role": "ipython", "content": "hi"}])).status_code == 200
    assert gateway.tokens.messages == [{"role": "ipython", "content": "hi"}], "the chat template judges roles"


WRONG_COMPLETIONS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"suffix": "x"}, "suffix", "unsupported_value"),
    ({"max_tokens": -1, "echo": True}, "max_tokens", None),
    ({"prompt_logprobs": 21}, "prompt_logprobs", None),
    ({"prompt_logprobs": -1}, "prompt_logprobs", None),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", None),
    ({"best_of": 3, "stream": True}, "best_of", None),
    ({"best_of": 65, "prompt": ["a", "b"]}, "best_of", None),
    ({"n": 65, "prompt": ["a", "b"]}, "n", None),
    ({"best_of": 1, "n": 2}, "best_of", None),
    ({"prompt": ""}, "prompt", None),
    ({"prompt": [300]}, "prompt", None),
    ({"prompt": [-1]}, "prompt[0]", None),
    ({"prompt": "x" * 1000}, "prompt", "context_length_exceeded"),
    ({"prompt": "x" * 990, "max_tokens": 11}, "prompt", "context_length_exceeded"),
]


async def test_wrong_completions_are_named(gateway):
    for fields, param, code in WRONG_COMPLETIONS:
        check(gateway, await gateway.complete(**fields), 400, param, code)


async def test_a_field_that_comes_twice_is_its_last(gateway):
    assert (await post(gateway, f'"n": [[]], "messages": [{HI}], "n": 2')).status_code == 200
    assert gateway.relay.requests[0].choices == 2


async def test_json_is_announced_with_or_without_parameters(gateway):
    for kind in ("application/json; charset=utf-8", "Application/JSON"):
        assert (await gateway.complete({"content-type": kind})).is_success


async def test_unknown_paths_and_methods_have_openais_shape_too(gateway):
    for method, path in (("GET", "/v1/nothing"), ("GET", "/"), ("POST", "/v1/completions/")):
        message = check(gateway, await gateway.http.request(method, path), 404, None, "not_found")
        assert message == f"Not Found: {method} {path}"
    check(gateway, await gateway.http.get("/v1/completions"), 405, None, "method_not_allowed")


async def test_embeddings_are_not_supported(gateway):
    with pytest.raises(openai.BadRequestError, match="not supported"):
        await gateway.client.embeddings.create(model="tiny", input="hi")
