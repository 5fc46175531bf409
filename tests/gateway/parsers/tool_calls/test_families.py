"""Calls in what models write: each family's published examples, whatever pieces they come in, and what is no call."""

import json
from typing import get_args

import pytest
from budget import times
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato_gateway.openai.chat import call_layouts, tag_grammar, tool_grammar
from legato_gateway.openai.chat.tool_grammar import Function, FunctionPaths
from legato_gateway.parsers.harmony.tokens import marked
from legato_gateway.parsers.tool_calls import families
from legato_gateway.parsers.tool_calls.families import FAMILIES, CallParser
from legato_gateway.parsers.tool_calls.said import CallArguments, CallStart, Text
from legato_gateway.tokenizer.chat_template import ChatTemplate
from legato_grammar.guidance import Compiler
from legato_grammar.vocabulary import SINGLE_BYTES
from legato_protocol.settings.parsers import ToolCallSetting

WEATHER = {"city": "Paris", "unit": "°C"}
TYPED = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "on": {"type": ["boolean", "null"]},
        "list": {"$ref": "#/$defs/list"},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "grade": {"enum": [1, "a"]},
        "all": {"allOf": [{"type": ["string", "null"]}, {"type": ["string", "integer"]}]},
        "lines": {"type": "object"},
        "deep": {"$ref": "#/$defs/deep"},
        "odd": {"type": 5},
    },
    "$defs": {"list": {"type": "array"}, "deep": {"anyOf": [{"$ref": "#/$defs/deep"}] * 30 + [{"type": "string"}]}},
}
NAMES = {"get_weather", "get_stock_fundamentals", "get_current_conditions", "now", "f"}
FUNCTIONS = {**dict.fromkeys(NAMES), "typed": TYPED}

PARIS = ("get_weather", {"city": "Paris"})
TSLA = '<tool_call>\n{"arguments": {"symbol": "TSLA"}, "name": "get_stock_fundamentals"}\n</tool_call>'
SF = {"city": "San Francisco, CA, USA"}
TWO = (
    f'Let me look.\n<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(SF)}}}\n'
    '</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
LIST = '<tool_call>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now"}]</tool_call>'
ONE = '{"name": "f", "arguments": {"a": 1}}'
QUOTED = json.dumps({"name": "f", "arguments": json.dumps(WEATHER)})
CONDITIONS = {"location": "San Francisco, CA", "unit": "Fahrenheit"}
LLAMA = '{"name": "now", "parameters": {}}; {"name": "f", "parameters": {"a": [1, {"b": "}"}]}}'
MISTRAL = (
    '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "VvvODy9mT"}, '
    '{"name": "now", "arguments": {}, "id": "VvvODy9mU"} ]'
)
LATER = 'A moment.[TOOL_CALLS]get_weather{"city": "Paris"}[TOOL_CALLS]now[CALL_ID]VvvODy9mT[ARGS]{}'
CITIES = "[get_weather(city='San Francisco'), get_weather(city=\"Seattle\")]"
VALUES = "[f(a=[1, (2, 3)], b={'x': None}, c=True, d='it\\'s, (ok)', e=true, g=-1.5), now()]"
VALUED = {"a": [1, [2, 3]], "b": {"x": None}, "c": True, "d": "it's, (ok)", "e": True, "g": -1.5}

WRITTEN_TYPES = {
    "text": 'a < b\n</p> "\\d"\n',
    "count": "3",
    "on": "True",
    "list": "['a', None]",
    "either": "null",
    "grade": "a",
    "all": "5",
    "more": "{}",
    "note": "[1] and more",
    "deep": "5",
    "odd": "x",
    "lines": '{"a": "one\ntwo \\d"}',
}
TYPES = WRITTEN_TYPES | {"count": 3, "on": True, "list": ["a", None], "either": None, "more": {}}
TYPES["lines"] = {"a": "one\ntwo \\d"}


def qwen3_coder(name, arguments):
    given = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def glm(name, arguments):
    given = (f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{''.join(given)}</tool_call>"


CODER = f"Let me look.\n{qwen3_coder('get_weather', {'city': 'Paris'})}\n{qwen3_coder('now', {})}"
IN_STRING = "<tool_call><function=typed><parameter=list>['a', \"</parameter>\"]</parameter></function></tool_call>"
BARE = (
    "<function=get_weather><parameter=city>Paris</parameter></function>\n</tool_call> done <function=now></tool_call>"
)
UNCLOSED = f"<tool_call><function=f><parameter=a>1</parameter>\n{qwen3_coder('now', {})}"

DEEPSEEK = (
    "Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
DEEPSEEK_31 = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
    "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}'
    "<|tool_call_end|><|tool_calls_section_end|>"
)

FUNCTION_GEMMA = (
    "<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>"
    "<start_function_call>call:now{}<end_function_call>"
)
GEMMA_4 = (
    'Let me look.<|tool_call>call:f{a:<|"|>{"x"},\n<|"|>, b : [1, -2.5,{c:null}, true,<|"|><|"|>],<|"|>d e<|"|>:x y,'
    "g:[]}<tool_call|><|tool_call>call:now{}<tool_call|>"
)
GEMMA_VALUES = {"a": '{"x"},\n', "b": [1, -2.5, {"c": None}, True, ""], "d e": "x y", "g": []}
HARMONY = marked(
    "<|channel|>commentary<|message|>A plan.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
    '<|constrain|>json<|message|>{"city": "Paris"}<|call|>'
)
BROKEN_ARGUMENTS = '{"code": "one\ntwo\t\\d+ \\u00e9 \\user \\\\", "b": ["\x01"]}'
BROKEN = f'{{"name": "f", "arguments": {BROKEN_ARGUMENTS}}}'
BROKEN_EARLY = f'{{"arguments": {BROKEN_ARGUMENTS}, "name": "f"}}'
MENDED = {"code": "one\ntwo\t\\d+ é \\user \\", "b": ["\x01"]}
CALLED = ("get_current_conditions", CONDITIONS)
EXAMPLES = [  # family, what the model writes, its text, its calls
    ("Hermes", TSLA, "", [("get_stock_fundamentals", {"symbol": "TSLA"})]),  # Nous Research's model card
    ("Hermes", TWO, "Let me look.", [("get_weather", SF), ("now", {})]),  # Qwen's documentation
    ("Hermes", LIST, "", [PARIS, ("now", {})]),  # SmolLM2's model card: a list in one tag
    ("Hermes", f"<tool_call>{ONE[:-1]}</tool_call> done", " done", [("f", {"a": 1})]),  # that lacks a bracket
    ("Hermes", f"<tool_call>{ONE}}}</tool_call> done", " done", [("f", {"a": 1})]),  # or has one too many
    ("Hermes", f"<tool_call>{QUOTED}</tool_call>", "", [("f", WEATHER)]),  # or arguments that are quoted
    ("Llama3Json", json.dumps({"name": CALLED[0], "parameters": CONDITIONS}), "", [CALLED]),  # Meta's prompt format
    ("Llama3Json", LLAMA, "", [("now", {}), ("f", {"a": [1, {"b": "}"}]})]),
    ("Mistral", MISTRAL, "", [PARIS, ("now", {})]),  # up to the tokenizer of version 7
    ("Mistral", LATER, "A moment.", [PARIS, ("now", {})]),  # from version 11 on
    # Control characters, and backslashes that begin no escape, are escaped: arguments are JSON.
    *(("Hermes", f"<tool_call>{call}</tool_call>", "", [("f", MENDED)]) for call in (BROKEN, BROKEN_EARLY)),
    ("Llama3Json", BROKEN.replace("arguments", "parameters"), "", [("f", MENDED)]),
    ("Mistral", f"[TOOL_CALLS]f{BROKEN_ARGUMENTS}", "", [("f", MENDED)]),
    ("Pythonic", CITIES, "", [("get_weather", {"city": city}) for city in ("San Francisco", "Seattle")]),  # Meta's
    ("Pythonic", VALUES, "", [("f", VALUED), ("now", {})]),
    ("Qwen3Coder", CODER, "Let me look.", [PARIS, ("now", {})]),  # as its template writes it
    ("Qwen3Coder", BARE, "\n done", [PARIS, ("now", {})]),  # or without the outer tag, which it often forgets
    ("Qwen3Coder", UNCLOSED, "", [("f", {"a": 1}), ("now", {})]),
    ("Qwen3Coder", f"{CODER.replace(chr(10) + '</parameter>', '')} done", "Let me look.\n done", [PARIS, ("now", {})]),
    ("Qwen3Coder", "`<function=now>` is " + CODER, "`<function=now>` is Let me look.", [PARIS, ("now", {})]),
    ("Qwen3Coder", qwen3_coder("typed", WRITTEN_TYPES), "", [("typed", TYPES)]),
    ("Qwen3Coder", "<tool_call><function=f><parameter=a>1\n</function>\n</tool_call>", "", [("f", {"a": 1})]),
    ("Qwen3Coder", IN_STRING, "", [("typed", {"list": ["a", "</parameter>"]})]),
    (
        "GLM",
        f"Let me look.\n{glm('get_weather', {'city': 'Paris'})}{glm('now', {})}",
        "Let me look.",
        [PARIS, ("now", {})],
    ),
    (
        "GLM",
        "<tool_call>now</tool_call><tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
        "",
        [("now", {}), ("f", {"a": 1})],
    ),  # GLM 4.7
    ("GLM", "<tool_call>\nnow\n</tool_call>", "", [("now", {})]),
    ("GLM", glm("typed", WRITTEN_TYPES), "", [("typed", TYPES)]),
    ("DeepSeek", DEEPSEEK, "Let me look.", [PARIS, ("now", {})]),  # V3 and R1
    ("DeepSeek", DEEPSEEK_31, "", [PARIS, ("now", {})]),
    ("DeepSeek", DEEPSEEK.replace("```json\n", ""), "Let me look.", [PARIS, ("now", {})]),  # without a fence
    ("KimiK2", KIMI, "", [PARIS, ("now", {})]),
    ("KimiK2", KIMI.replace("<|tool_call_end|>", ""), "", [PARIS, ("now", {})]),  # that does not end its calls
    ("Phi4Mini", f"<|tool_call|>[{ONE}]<|/tool_call|>", "", [("f", {"a": 1})]),  # Microsoft's model card
    ("Phi4Mini", f"functools[{ONE}, {ONE}]", "", [("f", {"a": 1})] * 2),  # vLLM's prompt for it
    ("Granite", f"A moment.<|tool_call|>[{ONE}, {ONE}]", "A moment.", [("f", {"a": 1})] * 2),  # IBM's, from 3.0
    ("Granite", f"<tool_call>[{ONE}]</tool_call> done", " done", [("f", {"a": 1})]),  # Granite 3.1
    ("Granite", f"<|tool_call|>{BROKEN}", "", [("f", MENDED)]),  # one call without the list
    ("Granite", f"<|tool_call|>{ONE},\n{ONE} done", "done", [("f", {"a": 1})] * 2),
    ("Phi4Mini", f"<|tool_call|>{ONE} {ONE}<|/tool_call|>", "", [("f", {"a": 1})] * 2),
    (
        "Pythonic",
        f"```tool_code\n{CITIES}\n```",
        "",
        [("get_weather", {"city": c}) for c in ("San Francisco", "Seattle")],
    ),
    ("Gemma", FUNCTION_GEMMA, "", [("get_weather", {"city": "Paris"}), ("now", {})]),  # Google's documentation
    ("Gemma", GEMMA_4, "Let me look.", [("f", GEMMA_VALUES), ("now", {})]),
    ("Harmony", HARMONY, "A plan.", [PARIS]),
    ("Harmony", marked(f"<|channel|>commentary to=functions.f<|message|>{BROKEN_ARGUMENTS}"), "", [("f", MENDED)]),
    # Brackets that are missing before the end of a call are added.
    ("Hermes", f"<tool_call>{ONE[:-2]}</tool_call> done", " done", [("f", {"a": 1})]),
    ("KimiK2", KIMI.replace('"Paris"}', '"Paris"'), "", [PARIS, ("now", {})]),
]
NO_CALLS = {
    "Hermes": [
        "1 < 2 and <tool_cal is nothing",
        "<tool_call>what?</tool_call> so",
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call> {"arguments": {}}</tool_call>\n',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
    ],
    "Llama3Json": [
        '{"answer": 4}',
        ' {"name": "Ada", "parameters": {"born": 1815}} is a person\n',
        '{"name": "f"}',
        'It is {"name": "f", "parameters": {}}',
    ],
    "Mistral": ["[TOOL_CALLS] are what I would make, if I could\n"],
    "Pythonic": ["[1, 2, 3]", "[Ada(born=1815)]", "[f", "```python\nf()\n```", "``[f()]", "```python\n[1]```"],
    "Qwen3Coder": [
        "1 < 2 and <tool_cal is nothing",
        "<tool_call>what?</tool_call> so",
        "<tool_call>\n<function=a b></function></tool_call>",
        "<function=other></function>",
        "<tool_call> <function=",
        '<tool_call><function=f>{"a": 1}</function></tool_call>',
    ],
    "GLM": ["<tool_call>what?</tool_call> so", f"<tool_call>{300 * 'a'}</tool_call>", "<tool_call>\n\n"],
    "DeepSeek": [
        "<｜tool▁calls▁begin｜>none<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>f{}",
        "<｜tool▁calls▁begin｜><｜to",
    ],
    "KimiK2": ["<|tool_call_begin|>functions.f:0{}", "<|tool_calls_section_end|>"],
    "Phi4Mini": ["import functools\n", "functools[1]", "<|tool_call|>what?<|/tool_call|> so"],
    "Granite": ["<|tool_call|> [1, 2]", "</tool_call>"],
    "Gemma": [
        "<|tool_call>",
        "<start_function_call>call:a b{} <end_function_call>",
        "<tool_call|>",
        "<|tool_call>call f{}",
    ],
}
WRITTEN = [example[:2] for example in EXAMPLES]


def read(family, text, cuts=()):
    """Text, and calls as (name, arguments), of `text` in pieces. Texts were where they are said to have been, in their
    order, and never before what was passed by then."""
    parser = CallParser(family, FUNCTIONS)
    at, pieces, passed = 0, [], 0
    for cut in [*sorted(cuts), len(text)]:
        pieces += [(piece, passed) for piece in parser.push(text[at:cut])]
        at, passed = max(at, cut), parser.said.passed
    pieces += [(piece, passed) for piece in parser.finish()]
    said, calls, place = "", [], 0
    for piece, passed in pieces:
        if isinstance(piece, Text):
            said += piece.text
            assert "".join(text[begin:end] for begin, end in piece.places) == piece.text
            for begin, end in piece.places:
                assert max(place, passed) <= begin < end
                place = end
        elif isinstance(piece, CallStart):
            assert piece.index == len(calls)
            calls.append([piece.name, ""])
        else:
            assert isinstance(piece, CallArguments)
            assert piece.index == len(calls) - 1, "a call is done before the next begins"
            calls[-1][1] += piece.text
    return said, [tuple(call) for call in calls]


@pytest.mark.parametrize(("family", "text", "said", "calls"), EXAMPLES)
def test_published_examples_are_read(family, text, said, calls):
    found, called = read(family, text)
    assert (found, [(name, json.loads(arguments)) for name, arguments in called]) == (said, calls)


@pytest.mark.parametrize("family", NO_CALLS)
def test_what_is_not_a_call_is_text_in_full(family):
    for text in NO_CALLS[family]:
        assert read(family, text) == (text, [])
        assert read(family, text, range(len(text))) == (text, [])


@pytest.mark.parametrize(("family", "text"), WRITTEN)
@settings(max_examples=times(10), deadline=None)
@given(data=st.data())
def test_pieces_change_nothing(family, text, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    assert read(family, text, cuts) == read(family, text)
    assert read(family, text, range(len(text))) == read(family, text)


@pytest.mark.parametrize(("family", "text"), WRITTEN)
def test_an_answer_that_is_cut_off_anywhere_begins_as_the_whole_one(family, text):
    _, whole = read(family, text)
    for end in range(len(text)):
        _, calls = read(family, text[:end])
        assert [name for name, _ in calls] == [name for name, _ in whole[: len(calls)]]
        for (_, arguments), (_, complete) in zip(calls, whole, strict=False):
            assert complete.startswith(arguments)


@pytest.mark.parametrize(("complete", "arguments"), [(True, '{"a": ["b"]}'), (False, '{"a": ["b')])
def test_arguments_that_a_model_leaves_open_are_completed_unless_they_were_cut_off(complete, arguments):
    for family, before in (("Hermes", '<tool_call>{"name": "f", "arguments": '), ("Mistral", "[TOOL_CALLS]f")):
        parser = CallParser(family, FUNCTIONS)
        pieces = parser.push(before + '{"a": ["b') + parser.finish(complete)
        assert "".join(piece.text for piece in pieces if isinstance(piece, CallArguments)) == arguments


def test_arguments_are_told_while_they_are_written():
    parser = CallParser("Hermes", FUNCTIONS)
    pieces = parser.push('<tool_call>{"name": "f", "arguments": {"text": "Once upon a')
    assert pieces == [CallStart(0, "f"), CallArguments(0, '{"text": "Once upon a')]
    assert parser.push(" time") == [CallArguments(0, " time")]


WORDS = """<tool_call> </tool_call> [TOOL_CALLS] [ARGS] [CALL_ID] f ( { } [ ] ) = , : " ' \\ ; a 1 é \\ud8"""
TAGS = [
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function=f>",
    "<parameter=",
    "</parameter>",
    "</function>",
]
TAGS += [
    "<start_function_call>call:f{",
    "<escape>",
    "<end_function_call>",
    "<|tool_call>call:f{",
    '<|"|>',
    "<tool_call|>",
]
PARTS = [*WORDS.split(), *TAGS, '{"name": "f", "arguments": ', '"parameters": {', " ", "\n"]
TEXT = st.lists(st.sampled_from(PARTS), max_size=25).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=times(40), deadline=None)
@given(text=TEXT, data=st.data())
@example(text='<tool_call>{"name": "\\ud800", "arguments": "\\ud800"}</tool_call>', data=None)
def test_any_text_is_read_to_its_end_and_can_be_sent(family, text, data):
    whole = read(family, text)
    said, calls = whole
    (said + "".join(name + arguments for name, arguments in calls)).encode()
    assert calls or said == text or family == "Harmony", "there, a text may be the beginning of a header"
    if data is not None:
        assert read(family, text, data.draw(st.lists(st.integers(0, len(text)), max_size=8))) == whole


PHI4_MINI = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if 'tools' in m and m['tools'] %}"""
PHI4_MINI += """<|tool|>{{ m['tools'] }}<|/tool|>{% endif %}<|end|>{% endfor %}{# message['tools'] #}"""
GRANITE = """{% if tools %}{{ tools }}answer with <|tool_call|> and a list{% endif %}{% for m in messages %}"""
GRANITE += """<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}{% endfor %}"""


@pytest.mark.parametrize(("family", "template"), [("Phi4Mini", PHI4_MINI), ("Granite", GRANITE)])
def test_calls_are_written_for_templates_that_do_not(family, template):
    support = families.for_model("Auto", template, family == "Granite")
    assert support.family == family
    call = {"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_call_id": "1", "name": "f"},
    ]
    tool = {"type": "function", "function": {"name": "f"}}
    given, variables = support.template_input(messages, [tool])
    text = ChatTemplate(template, {}).render(given, variables)
    assert read(family, text)[1] == [("f", '{"a": 1}')]
    if family == "Phi4Mini":
        assert '<|system|><|tool|>[{"name": "f"}]<|/tool|><|end|><|user|>hi' in text
        assert "<|tool_response|>rain" in text
    else:
        assert (variables, "<|start_of_role|>tool<|end_of_role|>rain" in text) == ({"tools": [tool]}, True)
    assert support.template_input(messages[:1], []) == (messages[:1], {})


TEMPLATES = {  # how each family's own template writes what its model wrote
    "Hermes": """{% if tools %}<tools>{{ tools }}</tools>{% endif %}{% for c in messages[0].tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>
{% endfor %}""",
    "Llama3Json": """{% if tools %}Environment: ipython{% endif %}{% set c = messages[0].tool_calls[0].function %}"""
    """{{- '{"name": "' + c.name + '", "parameters": ' + c.arguments | tojson + '}' }}""",
    "Mistral": """{% if tools %}{{ tools }}{% endif %}[TOOL_CALLS] [{% for c in messages[0].tool_calls %}"""
    """{{ (c.function | tojson)[:-1] + ', "id": "' + c.id + '"}' }}{% if not loop.last %}, {% endif %}{% endfor %}]""",
    "Qwen3Coder": """{% if tools %}{{ tools }}{% endif %}{% for c in messages[0].tool_calls %}
<tool_call>
<function={{ c.function.name }}>
{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>
{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}""",
    "GLM": """{% for c in messages[0].tool_calls %}<tool_call>{{ c.function.name }}
{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson if v is not string else v }}</arg_value>
{% endfor %}</tool_call>{% endfor %}""",
    "DeepSeek": """<｜tool▁calls▁begin｜>{% for c in messages[0].tool_calls %}<｜tool▁call▁begin｜>"""
    """{{ c.function.name + '<｜tool▁sep｜>' + c.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}"""
    """<｜tool▁calls▁end｜>""",
    "KimiK2": """<|tool_calls_section_begin|>{% for c in messages[0].tool_calls %}<|tool_call_begin|>functions."""
    """{{ c.function.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}"""
    """<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>""",
    "Phi4Mini": "{{ messages[0].content }}{# <|tool|> and message['tools'] #}",
    "Granite": "{{ messages[0].content }}{# <|start_of_role|> and <|tool_call|> #}",
    "Gemma": """{% for c in messages[0].tool_calls %}<start_function_call>call:{{ c.function.name + '{' }}"""
    """{% for k, v in c.function.arguments.items() %}{{ k }}:{% if v is string %}<escape>{{ v }}<escape>{% else %}"""
    """{{ v | tojson }}{% endif %}{% if not loop.last %},{% endif %}{% endfor %}}<end_function_call>{% endfor %}{# """
    """<start_function_call>call: #}""",
    "Harmony": """{# <|channel|>analysis<|message|> #}{% for c in messages[0].tool_calls %}<|start|>assistant """
    """to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>{{ c.function.arguments | tojson }}"""
    """<|call|>{% endfor %}""",
    "Pythonic": """{% if tools %}[func_name1(name=value)]{% endif %}[{% for c in messages[0].tool_calls %}"""
    """{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}"""
    """{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]""",
}


PROPERTIES = {
    "get_weather": {"city": {"type": "string"}, "unit": {"enum": ["°C"]}},
    "f": {"a": {"type": "array"}, "b": {"type": "object"}},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_come_back_through_the_template_as_they_are_required(family):
    calls = [("get_weather", WEATHER), ("f", {"a": [1, 2], "b": {"c": "x"}})][: 1 if family == "Llama3Json" else 2]
    given = [{"id": "123456789", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    message = {"role": "assistant", "content": "", "tool_calls": given}
    shown, _ = families.for_model("Auto", TEMPLATES[family], True).template_input([message], [])
    rendered = ChatTemplate(TEMPLATES[family], {}).render(shown)
    text, found = read(family, marked(rendered))
    assert (text, [(name, json.loads(arguments)) for name, arguments in found]) == ("", calls)
    functions = [Function(name, parameters={"properties": PROPERTIES[name]}) for name, _ in calls]
    if family in (*tag_grammar.LAYOUTS, *call_layouts.FAMILIES):
        grammar = tool_grammar.required(dict(enumerate(functions)), FunctionPaths("{}", (0, 1)), family, several=True)
        matcher = Compiler(SINGLE_BYTES).compile(grammar.kind, grammar.source).matcher()
        assert matcher.consume(list(rendered.strip().encode()))
        assert matcher.accepting


@pytest.mark.parametrize(
    ("setting", "template", "family"),
    [
        ("Auto", TEMPLATES["DeepSeek"], "DeepSeek"),
        ("Pythonic", "<start_of_turn>", "Pythonic"),
        ("Auto", "<start_of_turn>", "Hermes"),
    ],
)
def test_tools_are_described_where_the_template_takes_none(setting, template, family):
    """In DeepSeek V3.1's own words, or in those of Hermes or of Google for Gemma 3."""
    support = families.for_model(setting, template, False)
    call = {"id": "1", "function": {"name": "f", "arguments": {"a": "é"}}}
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tool = {"type": "function", "function": {"name": "f", "description": "does it", "parameters": {"type": "object"}}}
    (system, _, said), variables = support.template_input(messages, [tool])
    assert (support.family, variables, system["role"]) == (family, {}, "system")
    assert all(part in system["content"] for part in ("does it", '{"type": "object"}'))
    if family == "DeepSeek":
        assert said["tool_calls"] == [call], "its template writes them"
        assert "<｜tool▁calls▁begin｜>" in system["content"]
    else:
        assert read(family, said["content"]) == ("", [("f", '{"a": "é"}')])
    assert support.template_input(messages[:1], [])[0] == messages[:1]


def test_the_family_is_found_in_the_template():
    found = {family: families.from_template(template) for family, template in TEMPLATES.items()}
    assert found == {family: family for family in FAMILIES}
    assert get_args(ToolCallSetting) == families.SETTINGS
    for unknown in (None, "{{ tools }}", "<function={{ tools }}>", "<tool_call><tool_sep>"):
        assert families.from_template(unknown) is None, "formats that are not known are not guessed"
