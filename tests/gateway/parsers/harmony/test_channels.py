"""Answers of gpt-oss: reasoning, texts and calls, as in OpenAI's documentation of the format, and in worse forms."""

import json

import pytest

from legato_gateway.parsers.harmony.tokens import marked
from legato_gateway.parsers.tool_calls.families import CallParser
from legato_gateway.parsers.tool_calls.said import CallStart, Text, Thought

THINK = "<|channel|>analysis<|message|>Let me see.<|end|>"
NEXT = "<|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "}\\n"}<|call|>'
FINAL = "<|channel|>final<|message|>Sunny.<|return|>"
F = ("f", '{"a": "}\\n"}')
ANSWERS = {  # what the model writes: reasoning, text and calls
    THINK + NEXT + FINAL: ("Let me see.", "Sunny.", []),
    THINK + NEXT + CALL: ("Let me see.", "", [F]),
    CALL.replace("commentary", "analysis"): ("", "", [F]),
    f" to=functions.f<|channel|>commentary json<|message|>{F[1]}<|call|>": ("", "", [F]),  # as templates write it
    f"{THINK}{NEXT} to=functions.f<|channel|>commentary<|message|>{F[1]}": ("Let me see.", "", [F]),
    f"{NEXT}{THINK}{NEXT}<|channel|>commentary<|message|>A plan.<|end|>{NEXT}{CALL}": ("Let me see.", "A plan.", [F]),
    f"{THINK}{NEXT}{THINK}{NEXT}{FINAL}": ("Let me see.\nLet me see.", "Sunny.", []),
    f"<|channel|>commentary<|message|>A plan. <|end|>{NEXT}{FINAL}": ("", "A plan.\nSunny.", []),
    '<|channel|>commentary to=f code<|message|>\n {"a": 1} so<|call|>': ("", "", [("f", '{"a": 1}')]),
    '<|channel|>commentary to=functions.new<|message|>{"a": [1<|call|>': ("", "", [("new", '{"a": [1]}')]),
    '<|channel|>commentary to=functions.f<|message|>{"a": "b<|call|>': ("", "", [("f", '{"a": "b"}')]),
    '<|channel|>commentary to=functions.f<|message|>{"a": "\n\\d"}': ("", "", [("f", '{"a": "\\n\\\\d"}')]),
    "<|channel|>commentary to=functions.f<|message|><|call|>": ("", "", [("f", "{}")]),
    "<|channel|>commentary to=functions.f<|message|>print(1)<|call|>": (
        "",
        "",
        [("f", '{"INVALID_JSON": "print(1)"}')],
    ),
    "<|channel|>analysis to=browser.search code<|message|>{}<|call|>": ("{}", "", []),
    "<|channel|>commentary to=g<|message|>{}<|call|>": ("{}", "", []),
    "<|channel|>commentary to=functions.a/b<|message|>{}": ("{}", "", []),
    "<|channel|>other<|message|>Sunny.<|end|>lost<|start|>user<|message|>And now?": ("And now?", "Sunny.", []),
    "<|channel|>final<|message|>Sun<|message|>ny.<|channel|>analysis<|message|>x": ("x", "Sunny.", []),
    "<|channel|>final <|constrain|>json<|message|>{}": ("", "{}", []),
    "<|message|>Sunny.": ("", "Sunny.", []),
    "Sunny.\n": ("", "Sunny.\n", []),
    "Sunny. " * 99: ("", "Sunny. " * 99, []),
    "<|channel|>ana": ("", "", []),
    " to=functions": ("", "", []),
    "": ("", "", []),
}


def read(text, size=1, header="", functions=("f",), complete=True):
    """Reasoning, text and calls of an answer in pieces of this size. Texts have been where their places are."""
    parser, pieces = CallParser("Harmony", dict.fromkeys(functions), header), []
    for at in range(0, len(text), size):
        pieces += parser.push(text[at : at + size])
    thought, said, calls = "", "", []
    for piece in pieces + parser.finish(complete):
        if isinstance(piece, Thought):
            thought += piece.text
        elif isinstance(piece, Text):
            said += piece.text
            assert "".join(text[begin:end] for begin, end in piece.places) == (piece.text if piece.places else "")
        elif isinstance(piece, CallStart):
            calls.append([piece.name, ""])
        else:
            calls[-1][1] += piece.text
    return thought, said, [tuple(call) for call in calls]


@pytest.mark.parametrize("text", ANSWERS)
def test_answers_are_read_whatever_pieces_they_come_in(text):
    whole = read(marked(text), max(len(text), 1))
    assert whole == ANSWERS[text]
    assert read(marked(text)) == read(marked(text), 7) == whole
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in whole[2])


@pytest.mark.parametrize("text", ANSWERS)
def test_what_is_cut_off_begins_as_the_whole_answer(text):
    thought, said, calls = read(marked(text))
    for end in range(len(marked(text))):
        early = read(marked(text)[:end], complete=False)
        assert thought.startswith(early[0])
        assert said.startswith(early[1].rstrip())
        assert [name for name, _ in early[2]] == [name for name, _ in calls[: len(early[2])]]
        assert all(whole.startswith(given) for (_, given), (_, whole) in zip(early[2], calls, strict=False))


def test_only_special_tokens_have_a_meaning():
    """A model that explains the format writes it in ordinary tokens."""
    shown = f"{THINK}{NEXT}{CALL} \ufdd0<|x \ufdd0"
    assert read(f"{marked('<|channel|>final<|message|>')}{shown}{marked('<|return|>')}")[1] == shown.replace(
        "\ufdd0", ""
    )
    assert read(marked('<|channel|>commentary to=functions.f<|message|>{"a": "') + '<|call|>"}') == (
        "",
        "",
        [("f", '{"a": "<|call|>"}')],
    )


def test_an_answer_may_continue_a_message_of_the_prompt():
    assert read(" day.", header=marked("assistant<|channel|>final<|message|>")) == ("", " day.", [])
    assert read(marked(f"more<|end|>{NEXT}{FINAL}"), header=marked("assistant<|channel|>analysis<|message|>")) == (
        "more",
        "Sunny.",
        [],
    )


def test_without_functions_nothing_is_called():
    assert read(marked(CALL), functions=()) == ('{"a": "}\\n"}', "", [])
