"""Input of a response: items become messages of a chat, and errors name the place of the item."""

from typing import Any

import msgspec
import pytest
from tests.support.response_events import ask

from legato_gateway.openai.responses.body import PROMPT_FIELDS, SHARED
from legato_gateway.openai.schemas import SamplingBody

FLAT: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": None}
HOSTED: Any = {"type": "web_search"}
SPACE: Any = {"type": "namespace", "name": "crm", "description": ""}

HI = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather"}
CALL["arguments"] = '{"city": "Rome"}'
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
TEXT = {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [TEXT]}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}


CONTINUOUS: Any = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
ELSEWHERE = {field.name for field in msgspec.structs.fields(SamplingBody)} - set(SHARED)


def called(*ids: str) -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": {"city": "Rome"}}
    return [{"id": id, "type": "function", "function": function} for id in ids]


ITEMS: list[tuple[Any, list[Any]]] = [
    ("hi", [HI]),
    ([HI], [HI]),
    (
        [{**HI, "type": "message", "content": [{"type": "input_text", "text": t} for t in "ab"]}],
        [HI | {"content": "a\nb"}],
    ),
    ([{"role": "developer", "content": "hi"}], [{"role": "system", "content": "hi"}]),
    ([SAID, THOUGHT], [{"role": "assistant", "content": "Let me see."}]),
    ([{"type": "agent_message", "author": "/a", "content": [{"type": "input_text", "text": "hi"}]}], [HI]),
    (
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
        [{"role": "assistant", "content": "No."}],
    ),
]


async def test_items_become_messages_behind_the_instructions(gateway):
    for input, messages in ITEMS:
        await gateway.client.responses.create(model="tiny", input=input)
        assert gateway.tokens.messages == messages
    await gateway.client.responses.create(model="tiny", input="hi", instructions="Be brief.")
    assert gateway.tokens.messages == [{"role": "system", "content": "Be brief."}, HI]


async def test_calls_belong_to_the_message_before_them(make):
    gateway = make(template="{{ tools }}<tool_call>")
    other = {**CALL, "call_id": "call_2"}
    results = [{**RESULT, "output": [{"type": "input_text", "text": "sun"}], "call_id": "call_2"}, RESULT]
    input: Any = [{"role": "user", "content": "?"}, THOUGHT, SAID, CALL, other, *results, {**CALL, "call_id": "call_3"}]
    await gateway.client.responses.create(model="tiny", input=input)
    _, asked, second, first, again = gateway.tokens.messages
    thought = {"reasoning": "hm", "reasoning_content": "hm"}
    assert asked == {"role": "assistant", "content": "Let me see.", **thought, "tool_calls": called("call_1", "call_2")}
    assert [second["content"], second["tool_call_id"], first["content"]] == ["sun", "call_2", "rain"]
    assert again == {"role": "assistant", "content": "", "tool_calls": called("call_3")}


async def test_calls_of_custom_tools_and_in_namespaces_are_those_of_functions(make):
    gateway = make(template="{{ tools }}<tool_call>")
    patch = {"type": "custom_tool_call", "call_id": "call_2", "name": "patch", "input": '+ "a"'}
    results = [RESULT, {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"}]
    input: Any = [{**CALL, "namespace": "crm"}, patch, *results]
    await gateway.client.responses.create(model="tiny", input=input)
    asked, *answers = gateway.tokens.messages
    functions = [call["function"] for call in asked["tool_calls"]]
    inner = {"name": "crm__get_weather", "arguments": {"city": "Rome"}}
    assert functions == [inner, {"name": "patch", "arguments": {"input": '+ "a"'}}]
    assert [message["content"] for message in answers] == ["rain", "done"]


async def test_what_was_reasoned_goes_with_the_message_or_call_behind_it(make):
    gateway = make(template="{{ tools }}<tool_call>")
    user = {"role": "user", "content": "?"}
    input: Any = [THOUGHT, user, THOUGHT, THOUGHT, CALL, RESULT, SAID, THOUGHT, {**CALL, "call_id": "call_2"}, THOUGHT]
    await gateway.client.responses.create(model="tiny", input=input)
    found = [(message["role"], message.get("reasoning")) for message in gateway.tokens.messages]
    later = [("tool", None), ("assistant", None), ("assistant", "hm")]
    assert found == [("user", None), ("assistant", "hmhm"), *later]
    assert [len(message.get("tool_calls", ())) for message in gateway.tokens.messages] == [0, 1, 0, 0, 1]


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("input", {"input": []}),
    ("input", {"input": "x" * 3000}),
    ("input[0]", {"input": ["hi"]}),
    ("input[1].type", {"input": [SAID, {"type": "item_reference", "id": "msg_1"}]}),
    ("input[0].type", {"input": [{"type": "web_search_call", "id": "a", "status": "completed"}]}),
    ("input[0].role", {"input": [{"content": "hi"}]}),
    ("input[0].role", {"input": [{"role": "tool", "content": "hi"}]}),
    ("input[0].role", {"input": [{"role": "a b", "content": "hi"}]}),
    ("input[1].role", {"input": [CALL, {"role": "a b", "content": "hi"}]}),
    ("input[0].content", {"input": [{"role": "user"}]}),
    ("input[0].content[1].type", {"input": [{"role": "user", "content": [TEXT, {"type": "input_image"}]}]}),
    ("input[0].content[0].text", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
    ("input", {"input": [{"type": "reasoning", "summary": []}]}),
    ("input[0].call_id", {"input": [RESULT]}),
    ("input[1].output", {"input": [CALL, {"type": "function_call_output", "call_id": "call_1"}]}),
    ("input[0].name", {"input": [{"type": "function_call", "call_id": "a", "arguments": ""}]}),
    ("input[0].input", {"input": [{"type": "custom_tool_call", "call_id": "a", "name": "f"}]}),
    ("input", {"input": [{"role": "user", "content": ""}] * 2049}),
    ("instructions", {"instructions": ["hi"]}),
    ("input", {"max_output_tokens": 5000}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("include[0]", {"include": ["everything"]}),
    ("metadata", {"metadata": {str(n): "" for n in range(17)}}),
    ("metadata[...]", {"metadata": {"a": "x" * 513}}),
    ("metadata[...]", {"metadata": {"a": 5}}),
    ("text.format", {"text": {"format": "json"}}),
    ("text.format.type", {"text": {"format": {"type": "xml"}}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a"}}}),
    ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"uniqueItems": True}}}}),
    ("text.format.strict", {"text": {"format": {"type": "json_schema", "schema": {}, "strict": 3}}}),
    ("text", {"text": {"loud": True}}),
    ("tools[1].name", {"tools": [FLAT, FLAT]}),
    ("tools[0]", {"tools": [{"type": "function"}]}),
    ("tools[0].name", {"tools": [{**FLAT, "name": 5}]}),
    ("tools[0].name", {"tools": [{**FLAT, "name": "a b"}]}),
    ("tools[0].parameters", {"tools": [{**FLAT, "strict": True, "parameters": {"uniqueItems": True}}]}),
    ("tools[0].async", {"tools": [{**FLAT, "async": True}]}),
    ("tools[1].tools[0].name", {"tools": [HOSTED, {**SPACE, "tools": [{**FLAT, "name": "a b"}]}]}),
    ("tools[0].tools[1].type", {"tools": [{**SPACE, "tools": [FLAT, HOSTED]}]}),
    ("tools[0]", {"tools": [{**SPACE, "tools": None}]}),
    *(("tools[0].name", {"tools": [{**SPACE, "name": name, "tools": []}]}) for name in ("", "n" * 129)),
    ("tools[1].tools[0].name", {"tools": [{**FLAT, "name": "crm__get_weather"}, {**SPACE, "tools": [FLAT]}]}),
    ("tools[0].format", {"tools": [{"type": "custom", "name": "f", "format": "text"}]}),
    ("tools[0].allowed_callers", {"tools": [{**FLAT, "allowed_callers": ["programmatic"]}]}),
    ("tools", {"tools": [{**FLAT, "name": f"f{n}"} for n in range(1025)]}),
    ("tools", {"tools": [{**SPACE, "tools": [{**FLAT, "name": f"f{n}"} for n in range(1025)]}]}),
    ("tool_choice", {"tool_choice": {"type": "custom", "name": "get_weather"}, "tools": [FLAT]}),
    ("tool_choice", {"tool_choice": {"type": "function", "name": "other"}, "tools": [FLAT]}),
    ("tool_choice.name", {"tool_choice": {"type": "function"}, "tools": [FLAT]}),
    ("tool_choice.type", {"tool_choice": {"type": "allowed_tools", "mode": "auto"}, "tools": [FLAT]}),
    ("reasoning.effort", {"reasoning": {"effort": 5}}),
    ("truncation", {"truncation": "auto"}),
    ("previous_response_id", {"previous_response_id": "resp_1"}),
    ("background", {"background": True}),
    ("conversation", {"conversation": "conv_1"}),
    ("moderation", {"moderation": {"model": "omni-moderation-latest"}}),
    ("prompt", {"prompt": {"id": "pmpt_1"}}),
    ("stream_options.continuous_usage_stats", CONTINUOUS),
    ("messages", {"messages": []}),
    ("model", {"model": "other"}),
]


async def test_what_is_wrong_is_named_where_it_is_and_its_tokens_are_not_counted(gateway):
    for param, fields in WRONG:
        for path in ("responses", "responses/input_tokens"):
            answer = await gateway.http.post(f"/v1/{path}", json={"input": "hi", **fields})
            if path != "responses" and not fields.keys() <= set(PROMPT_FIELDS):
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(fields)))
                continue
            error = answer.json()["error"]
            assert answer.status_code in (400, 404), error
            assert (error["param"], error["type"]) == (param, "invalid_request_error"), error
            assert not any(word in error["message"] for word in ("messages[", "function.name", "json_schema.schema"))
    answer = await gateway.http.post("/v1/responses/input_tokens", json={"input": "hi", "personality": "friendly"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "personality")
    assert not gateway.relay.generations


async def test_what_only_chats_have_is_refused(gateway):
    """A chat's writer may obey it; nothing here would."""
    for field in sorted(ELSEWHERE):
        answer = await ask(gateway, **{field: {"max_tokens": 5, "n": 2}.get(field, {"a": 1})})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


async def test_what_is_off_is_not_refused(gateway):
    off = dict.fromkeys(("context_management", "conversation", "moderation", "prompt", "background", "tools"))
    off |= {"reasoning": {"effort": None, "mode": "standard"}, "store": False}
    assert (await ask(gateway, include=["reasoning.encrypted_content"], **off)).status_code == 200


ASKED: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Is it raining?"}]}]


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "hi"},
        {"input": ASKED, "instructions": "Be brief.", "truncation": "disabled"},
        {"input": ASKED, "tools": [FLAT], "tool_choice": "required", "parallel_tool_calls": False},
        {"input": "hi", "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": None}},
    ],
)
async def test_it_is_what_the_response_then_counts(make, fields):
    gateway = make(template="{{ tools }}<tool_call>")
    counted = await gateway.client.responses.input_tokens.count(model="tiny", **fields)
    assert counted.object == "response.input_tokens"
    assert gateway.relay.requests == [], "nothing is generated"
    made = await gateway.client.responses.create(model="tiny", **fields)
    assert counted.input_tokens == made.usage.input_tokens > 0


async def test_what_was_said_before_counts(storing):
    first = (await ask(storing, input="one")).json()
    fields = {"model": "tiny", "input": "two", "previous_response_id": first["id"]}
    counted = await storing.client.responses.input_tokens.count(**fields)
    assert counted.input_tokens == (await ask(storing, **fields)).json()["usage"]["input_tokens"] > len("user: two\n")
