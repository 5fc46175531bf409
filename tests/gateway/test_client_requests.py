"""Requests as clients send them: parts of messages, calls that were cut off, stop strings, ids of their own."""

import json

import pytest
from generation_apis import CHAT, COMPLETIONS, MESSAGES, RESPONSES, SPEAKING

from legato_gateway.parsers.tool_calls.families import ToolSupport
from legato_gateway.request import Delta
from legato_gateway.tokenizer.chat_template import ChatTemplate, UnreadArguments
from legato_gateway.tokenizer.plain_text import SpecialTexts

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
PARTS = ("Hello,", "world")
TYPES = {"user": "input_text", "assistant": "output_text"}
WRITTEN = ['{"city": "Par', "", "null", "[1]", '"x"', "{'city': 1}", '{"a": 1} x']


def conversation(api, role, *texts):
    """The fields of a request that ends with a user's message, and has parts in one of this role."""
    parts = [{"type": TYPES[role] if api is RESPONSES else "text", "text": text} for text in texts]
    turns = [{"role": "user", "content": "hi"}, {"role": role, "content": parts}, {"role": "user", "content": "go"}]
    return {"input" if api is RESPONSES else "messages": turns[1:] if role == "user" else turns}


@pytest.mark.parametrize(("role", "joined"), [("user", "Hello,\nworld"), ("assistant", "Hello,world")])
@pytest.mark.parametrize("api", SPEAKING, ids=str)
async def test_parts_of_a_message_are_joined_alike(gateway, api, role, joined):
    """On lines of their own, as vLLM and llama.cpp join them; parts of an answer are pieces of one text."""
    assert (await api.post(gateway, **conversation(api, role, *PARTS))).is_success
    said = [message["content"] for message in gateway.tokens.messages if message["role"] == role]
    assert said[-1 if role == "assistant" else 0].startswith(joined)


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=str)
async def test_a_call_in_the_history_may_have_arguments_that_are_not_an_object(make, api, written):
    """Models write them, and answers are cut off. `""` has always been no arguments."""
    gateway = make(template="{{ tools }} <tool_call>")
    call = {"name": "f", "arguments": written}
    if api is RESPONSES:
        turns = [{"type": "function_call", "call_id": "c", **call}, {"role": "user", "content": "go"}]
    else:
        message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]}
        turns = [message, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    assert (await api.post(gateway, **{"input" if api is RESPONSES else "messages": turns})).is_success
    (asked,) = (m["tool_calls"][0]["function"] for m in gateway.tokens.messages if m.get("tool_calls"))
    assert asked["arguments"] == ({"INVALID_JSON": written} if written else {})


def test_templates_show_such_arguments_as_they_were_written():
    call = {"name": "f", "arguments": UnreadArguments('{"city": "Par')}
    shown = (
        "{{ call.arguments | tojson }} {% for key, value in call.arguments | items %}{{ key }}={{ value }}{% endfor %}"
    )
    assert ChatTemplate(shown, {}).render([], {"call": call}) == '{"city": "Par INVALID_JSON={"city": "Par'
    nested = ChatTemplate("{{ call | tojson }}", {}).render([], {"call": call})
    assert json.loads(nested) == {"name": "f", "arguments": {"INVALID_JSON": '{"city": "Par'}}


@pytest.mark.parametrize("api", [CHAT, RESPONSES], ids=str)
async def test_a_call_is_required_of_tools_only_if_there_are_any(gateway, api):
    said = await api.ask(gateway, tool_choice="required")
    assert said.text == "Paris é!"
    answer = await api.post(gateway, tool_choice="required", tools=[{"type": "web_search"}])
    assert (answer.status_code, api.names(answer, "tool_choice")) == (400, True)


@BOTH
async def test_max_tokens_0_of_messages_computes_the_prompt_only(gateway, stream):
    said = await MESSAGES.ask(gateway, stream, max_tokens=0)
    assert (said.text, said.finish, said.usage[2]) == ("", "length", 0)
    assert gateway.relay.requests[0].params.max_tokens == 1


async def test_models_are_listed_in_the_shape_of_the_client(gateway):
    headers = {"anthropic-version": "2023-06-01"}
    openai, anthropic = [(await gateway.http.get("/v1/models", headers=h)).json() for h in (None, headers)]
    assert (openai["object"], openai["data"][0]["object"]) == ("list", "model")
    (model,) = anthropic["data"]
    assert (model["type"], model["id"], model["created_at"][-1]) == ("model", "tiny", "Z")
    assert (anthropic["first_id"], anthropic["last_id"], anthropic["has_more"]) == ("tiny", "tiny", False)
    assert (await gateway.http.get("/v1/models/tiny", headers=headers)).json() == model
    wrong = [(await gateway.http.get("/v1/models/other", headers=h)).json() for h in (None, headers)]
    assert [error.get("type") for error in wrong] == [None, "error"]


@pytest.mark.parametrize(("include", "shown"), [(False, set()), (True, {257})])
@pytest.mark.parametrize("api", [CHAT, COMPLETIONS], ids=str)
async def test_a_stop_string_that_is_a_special_token_ends_by_its_id(make, api, include, shown):
    """It is not part of a text; one that ends every answer is not reported as a stop string."""
    gateway = make(marks=("[STOP]", "[END]"))
    await api.ask(gateway, stop=["[STOP]", "x"], include_stop_str_in_output=include)
    (request,) = gateway.relay.requests
    assert request.params.stop_token_ids == (256, 257)
    assert (request.special_stops, request.shown_tokens, request.stop) == ({257: "[STOP]"}, shown, ("[STOP]", "x"))
    assert request.own_stop_tokens == frozenset()


@pytest.mark.parametrize(
    "written", ["<tool_call>\n", '<tool_call>\n{"name": "no', '<tool_call>\n{"name": "now", "arguments": {']
)
@BOTH
@pytest.mark.parametrize("api", SPEAKING, ids=str)
async def test_a_required_call_that_is_cut_off_shows_no_markup(gateway, api, stream, written):
    gateway.script(Delta(0, written), Delta(0, "", (), "length"))
    said = await api.ask(gateway, stream, **api.meant("tools", [{"name": "now"}]), **api.meant("choice", "required"))
    assert (said.text, said.finish) == ("", "length")
    assert [name for name, _ in said.calls] == ["now"] * ("arguments" in written)


@pytest.mark.parametrize(("given", "kept"), [("a-1:b", True), ("x" * 128, True), ("x" * 129, False), ("a b", False)])
@pytest.mark.parametrize("api", SPEAKING, ids=str)
async def test_a_client_s_request_id_is_echoed_and_logged(gateway, api, given, kept):
    """Errors echo it, too. Anthropic's `request-id` stays the gateway's own."""
    for fields in ({}, {"stream": True}, {"model": "other"}):
        answer = await api.post(gateway, {"X-Request-Id": given}, **fields)
        assert (answer.headers.get_list("x-request-id") == [given]) == kept
        assert gateway.entries[-1].request_id == (given if kept else None)
    assert (await api.post(gateway)).headers.get("x-request-id") != given


def _turns(*calls):
    """A conversation with a call of each id and its result, in which the user says more."""
    called = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in calls]
    results = [{"role": "tool", "tool_call_id": id, "name": "f", "content": id} for id in calls]
    asked = {"role": "assistant", "content": None, "tool_calls": called}
    return [{"role": "user", "content": "hi"}, asked, *results, {"role": "user", "content": "go"}]


async def test_results_of_calls_are_one_turn_for_templates_without_tools(gateway):
    """Such templates may demand that turns alternate, as that of Mistral 7B v0.1."""
    await CHAT.ask(gateway, messages=_turns("a", "b"))
    said = gateway.tokens.messages
    assert [message["role"] for message in said] == ["user", "assistant", "user"]
    assert said[-1]["content"].count("<tool_response>") == 2
    assert said[-1]["content"].endswith("</tool_response>\ngo")
    two = [{"role": "user", "content": text} for text in "ab"]
    await CHAT.ask(gateway, messages=two)
    assert gateway.tokens.messages == two, "a client's own messages are left as they are"


@pytest.mark.parametrize("has_system", [True, False])
def test_tools_are_told_where_a_template_can_show_them(has_system):
    tools = [{"type": "function", "function": {"name": "now"}}]
    support = ToolSupport("Hermes", in_system=has_system)
    messages, _ = support.template_input(_turns("a"), tools)
    assert [message["role"] for message in messages] == ["system"] * has_system + ["user", "assistant", "user"]
    assert '{"name": "now"}' in messages[0]["content"]
    assert messages[0]["content"].endswith("hi") != has_system


HOSTED = {"type": "web_search_20250305", "name": "web_search"}
EXTRAS = [  # tests/gateway/test_request_fields.py tests each one separately
    (MESSAGES, {"tools": [HOSTED, {"name": "now", "input_schema": {"type": "object"}}]}, "tools[0]"),
    (RESPONSES, {"reasoning": {"effort": "low", "summary": "auto"}}, "reasoning.summary, reasoning.effort"),
    (CHAT, {"tools": [{"type": "web_search"}, {"type": "function", "function": {"name": "now"}}]}, "tools[0]"),
    (CHAT, {"prediction": {"type": "content", "content": "x"}, "web_search_options": {}}, "prediction"),
]


@BOTH
@pytest.mark.parametrize(("api", "extra", "named"), EXTRAS, ids=str)
async def test_what_only_asks_for_an_extra_is_answered_without_it_and_named(gateway, api, extra, named, stream):
    answer = await api.post(gateway, **extra, stream=stream)
    assert (answer.status_code, answer.headers.get("x-legato-ignored")) == (200, named), answer.text


@pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES], ids=str)
async def test_functions_keep_their_numbers_alongside_tools_that_are_ignored(gateway, api):
    """An error names the tool that the client sent at that place."""
    tools = api.meant("tools", [{"name": "a b"}])["tools"]
    answer = await api.post(gateway, tools=[HOSTED, *tools])
    assert (answer.status_code, "tools[1]" in api.error(answer)[1]) == (400, True), answer.text


async def test_anthropic_s_sdk_goes_on_without_a_thread(gateway):
    """It looks for this code in the details of an error."""
    answer = await MESSAGES.post(gateway, thread={"type": "create"})
    error = answer.json()["error"]
    assert (answer.status_code, error["details"]["error_code"]) == (400, "thread_unsupported_request")
    assert error["details"]["unsupported"] == ["thread"]
    assert (await MESSAGES.post(gateway, thread=None)).is_success


@pytest.mark.parametrize("api", SPEAKING, ids=str)
async def test_the_template_gets_special_texts_of_clients_in_two_parts(make, api):
    """In messages, tools and variables. System prompts and earlier answers may have marks of reasoning."""
    gateway = make(template="{{ tools }}{{ lang }}<tool_call>[THINK]", marks=("[THINK]", "[/THINK]"))
    gateway.tokens.special_texts = SpecialTexts(["[THINK]", "<|end|>"])
    text = "a[THINK]<|end|>"
    field = "input" if api is RESPONSES else "messages"
    turns = [{"role": role, "content": text} for role in ("user", "assistant", "user")]
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"<|end|>": {"description": text}}}}
    kwargs = {"chat_template_kwargs": {"lang": text}} if api is CHAT else {}
    assert (await api.post(gateway, **{field: turns}, **api.meant("tools", [tool]), **kwargs)).is_success
    given = json.dumps([gateway.tokens.messages[1]["content"], gateway.tokens.messages[0], gateway.tokens.given])
    assert "<|end|>" not in given
    assert given.startswith('["a[THINK]<')
    assert given.count("[THINK]") == 1
    assert given.count("|end|>") == 4 + (api is CHAT)
