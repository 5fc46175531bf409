"""gpt-oss through each API: reasoning, calls, texts, stops, constraints, and what its template gets."""

import json
import re
from typing import Any

import msgspec
import pytest
from generation_apis import CHAT, MESSAGES, RESPONSES, SPEAKING
from grammar_vocabulary import PIECES
from scripted_gateway import ByteTokens

from legato_engine.grammars import compilations
from legato_gateway.parsers.harmony import support
from legato_gateway.parsers.harmony.tokens import ALL, marked
from legato_gateway.serving.model_serving import ModelServing, ServedModel
from legato_grammar.guidance import Compiler
from legato_grammar.vocabulary import SINGLE_BYTES, Vocabulary
from legato_protocol.sampling.parameters import REASONING, SamplingParams
from legato_protocol.sampling.reasoning import ReasoningBounds, ReasoningSpan

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TEMPLATE = "{{ tools }}{{ reasoning_effort }}<|start|><|channel|>analysis<|message|>"
MODEL: Any = {"template": TEMPLATE, "marks": ALL, "turn": "<|start|>assistant"}
START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN = range(257, 264)  # after the end of sequence, 256
THINK = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
PLAN = "<|channel|>commentary<|message|>A plan.<|end|><|start|>assistant"
CALLING = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
FINAL = "<|channel|>final<|message|>Sunny."
F = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
HI: Any = {"role": "user", "content": "hi"}


@BOTH
@pytest.mark.parametrize("api", SPEAKING, ids=str)
async def test_every_api_shows_reasoning_texts_and_calls(make, api, stream):
    gateway = make(**MODEL)
    gateway.say(marked(THINK + PLAN + THINK + CALLING))
    said = await api.ask(gateway, stream, **api.meant("tools", [F]))
    assert (said.text, said.reasoning) == ("A plan.", "Let me see.\nLet me see.")
    assert [(name, json.loads(arguments)) for name, arguments in said.calls] == [("f", {"a": 1})]
    assert said.finish == "calls"
    gateway.say(marked(THINK + FINAL))
    said = await api.ask(gateway, stream)
    assert (said.text, said.reasoning, said.calls, said.finish) == ("Sunny.", "Let me see.", [], "stop")
    (first, _) = gateway.relay.requests
    assert first.marked_tokens == set(range(257, 264))
    assert set(first.params.stop_token_ids) == {256, CALL, RETURN}, "though the model declares only the first"


@BOTH
async def test_separate_texts_stay_separate(make, stream):
    gateway = make(**MODEL)
    gateway.say(marked(PLAN + FINAL))
    assert (await CHAT.ask(gateway, stream)).text == "A plan.\nSunny."
    gateway.say(marked(PLAN + THINK + FINAL))
    answer = (await RESPONSES.post(gateway)).json()["output"]
    assert [item["content"][0]["text"] for item in answer] == ["A plan.", "Let me see.", "Sunny."]
    blocks = (await MESSAGES.post(gateway)).json()["content"]
    assert [block.get("text", block.get("thinking")) for block in blocks] == ["A plan.", "Let me see.", "Sunny."]


async def asked(gateway: Any, **body: Any) -> SamplingParams:
    response = await gateway.chat(**body)
    assert response.status_code == 200, response.text
    return gateway.relay.requests[-1].params


@pytest.mark.parametrize(
    ("effort", "shown"), [("low", "low"), ("minimal", "low"), ("max", "high"), ("none", "low"), (None, None)]
)
async def test_efforts_are_those_that_the_model_knows(make, effort, shown):
    gateway = make(**MODEL)
    params = await asked(gateway, reasoning_effort=effort)
    assert gateway.tokens.given.get("reasoning_effort") == shown
    assert (params.grammar_kind == REASONING) == (effort == "none")
    if effort == "none":
        assert msgspec.json.decode(params.grammar, type=ReasoningBounds).budget == 0


# ── constraints ─────────────────────────────────────────────────────────────────────────────────────────────────────

TOKENS = (*SINGLE_BYTES.tokens, b"<eos>", *(token.encode() for token in ALL), *PIECES, b"")
PADDING = len(TOKENS) - 1
COMPILER = Compiler(Vocabulary(TOKENS, frozenset((*range(256, 264), PADDING))))
STOPS = (256, CALL, RETURN)


def ids(text: str) -> list[int]:
    pieces = re.split("(" + "|".join(map(re.escape, ALL)) + ")", text)
    each = [[ALL.index(piece) + 257] if piece in ALL else list(piece.encode()) for piece in pieces]
    return [id for some in each for id in some]


def matches(params: SamplingParams, text: str) -> bool:
    """True if a worker lets a model write this, and then end."""
    position = compilations.position(compilations.compile_grammar(COMPILER, params.grammar_kind, params.grammar))
    output: list[int] = []
    for token in [*ids(text), RETURN]:
        mask = position.allowed(output, STOPS, False)
        if mask and not mask[token >> 3] >> (token & 7) & 1:
            return False
        output.append(token)
    return True


JSON = '<|channel|>final <|constrain|>json<|message|>{"a": 1}'
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": F["parameters"] | {"title": "<|end|>"}}}
G = {"name": "g", "strict": True, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS: Any = [{"type": "function", "function": function} for function in (F, G)]
WRONG_CALL, G_CALL = CALLING.replace("1", '"x"'), CALLING.replace("functions.f", "functions.g").replace('"a": 1', "")
CONSTRAINTS: Any = [  # fields, what may be written, and what may not
    ({"response_format": SCHEMA}, [JSON, THINK + JSON, THINK + THINK + FINAL.replace("Sunny.", '{"a": 2}')],
     [FINAL, THINK + FINAL, CALLING, '{"a": 1}', "<|channel|>analysis<|message|>{}", JSON.replace("1", '"x"')]),
    ({"guided_regex": "[a-z]/+"}, [FINAL.replace("Sunny.", "a//")], [FINAL]),
    ({"guided_choice": ["Sunny.", "Rain."]}, [FINAL], [FINAL.replace("Sunny.", "Snow.")]),
    ({"guided_grammar": 'start: "Sun" x\nx: "ny."'}, [THINK + FINAL], [FINAL + "!"]),
    ({"tools": TOOLS, "tool_choice": "required"}, [CALLING, THINK + CALLING, G_CALL],
     [FINAL, PLAN + CALLING, WRONG_CALL, CALLING.replace("functions.f", "functions.h"), CALLING + "{}"]),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, [G_CALL], [CALLING]),
    ({"tools": TOOLS}, [FINAL, PLAN + THINK + CALLING, G_CALL, THINK + PLAN + FINAL], [WRONG_CALL, "Sunny."]),
    ({"tools": TOOLS, "response_format": SCHEMA}, [JSON, CALLING, PLAN + JSON], [FINAL]),
    ({"tools": TOOLS, "response_format": SCHEMA, "tool_choice": "none"}, [JSON], [CALLING]),
    ({"thinking_token_budget": 11}, [THINK + FINAL, CALLING, FINAL], [THINK.replace("see", "seee") + FINAL]),
    ({"thinking_token_budget": 11, "response_format": SCHEMA}, [THINK + JSON],
     [THINK + FINAL, THINK + THINK + JSON]),  # the budget is for all reasoning together
    ({"thinking_token_budget": 2, "response_format": SCHEMA}, [THINK.replace("Let me see.", "日") + JSON],
     [THINK.replace("Let me see.", "日日") + JSON, THINK.replace("Let me see.", "日a") + JSON]),  # of whole characters
]  # fmt: skip


@pytest.mark.parametrize(("fields", "right", "wrong"), CONSTRAINTS)
async def test_texts_and_calls_are_constrained_and_reasoning_is_free(make, fields, right, wrong):
    params = await asked(make(**MODEL), **fields)
    assert [text for text in right if not matches(params, text)] == []
    assert [text for text in wrong if matches(params, text)] == []


async def test_an_answer_that_continues_a_text_is_constrained_from_there(make):
    gateway = make(**MODEL | {"turn": "<|start|>assistant<|channel|>final<|message|>"})
    gateway.say(marked("1}<|return|>"))
    fields = {"continue_final_message": True, "add_generation_prompt": False, "guided_regex": "[0-9]}"}
    answer = await gateway.chat(messages=[HI, {"role": "assistant", "content": '{"a": '}], **fields)
    assert answer.json()["choices"][0]["message"]["content"] == "1}"
    assert matches(gateway.relay.requests[-1].params, "1}")


def test_reasoning_is_counted_in_all_of_an_answer():
    tokens = support.HarmonyTokens(tuple(range(257, 264)), tuple(b"analysis"))
    span = ReasoningSpan(tokens.reasoning(""))
    span.follow(ids(THINK + PLAN + THINK + CALLING))
    assert (span.count, span.inside, span.over) == (2 * len("Let me see."), False, False)


# ── the model ───────────────────────────────────────────────────────────────────────────────────────────────────────

CHOSEN: Any = [  # options, and the formats of calls and reasoning, each with its reason
    ({}, ("Harmony", "the chat template shows it"), ("Harmony", "the chat template shows it")),
    ({"template": "{{ tools }}", "tool_call_parser": "Harmony"},
     ("Harmony", "gateway.toolCallParser names it"), ("Harmony", "gateway.toolCallParser names it")),
    ({"template": "{{ tools }}", "name": "GPT-OSS-20b"},
     ("Harmony", "the model's name"), ("Harmony", "the model's name")),
    ({"tool_call_parser": "Hermes"}, ("Hermes", "gateway.toolCallParser names it"), (None, "")),
    ({"tool_call_parser": "Off"}, (None, "switched off"), ("Harmony", "the chat template shows it")),
    ({"reasoning_parser": "Think"}, (None, "names another format"), ("Think", "gateway.reasoningParser names it")),
    ({"marks": ALL[1:]}, (None, "lacks special tokens"), (None, "lacks special tokens")),
]  # fmt: skip


@pytest.mark.parametrize(("options", "calls", "reasoning"), CHOSEN)
def test_formats_are_chosen_with_a_reason(options, calls, reasoning):
    given = {"name": "tiny", **MODEL, **options}
    tokens: Any = ByteTokens(given.pop("template"), given.pop("marks"), given.pop("turn"))
    formats = ModelServing.of_model(tokens, ServedModel(given.pop("name"), 1000), **given).formats()
    for chosen, (format, reason) in ((formats["tool_calls"], calls), (formats["reasoning"], reasoning)):
        assert (chosen["format"], reason in chosen["reason"]) == (format, True), chosen


async def test_the_end_of_a_message_does_not_end_an_answer(make):
    """Models of other formats end with `<|end|>`, and GGUF files do not say which."""
    gateway = make(**MODEL)
    gateway.tokens.eos_ids = (256, END)
    assert set((await asked(gateway)).stop_token_ids) == {256, CALL, RETURN}


async def test_reasoning_of_earlier_messages_reaches_the_template_between_calls(make):
    gateway = make(**MODEL)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    messages = [HI, {"role": "assistant", "content": "", "reasoning": "why", "tool_calls": [call]}, result]
    await asked(gateway, messages=messages, tools=TOOLS)
    made = gateway.tokens.messages[1]
    assert (made["thinking"], made["tool_calls"][0]["function"]["arguments"]) == ("why", '{"a":  1}')
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "why"}], "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    assert (await RESPONSES.post(gateway, input=items)).is_success
    assert gateway.tokens.messages[1]["thinking"] == "why"
    blocks = [{"type": "thinking", "thinking": "why"}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]
    results = [{"type": "tool_result", "tool_use_id": "c", "content": "x"}]
    messages = [HI, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    assert (await MESSAGES.post(gateway, messages=messages)).is_success
    assert gateway.tokens.messages[1]["thinking"] == "why"
