"""Grammars of answers in harmony. Reasoning stays free; text for the user and arguments of calls can be constrained.

Special tokens are written as such, so that text cannot be taken for them.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from legato_gateway.openai import structured_output
from legato_gateway.openai.structured_output import AnswerGrammar
from legato_gateway.parsers.harmony import tokens as harmony
from legato_grammar import guidance, lark
from legato_protocol.sampling.parameters import CHOICE, JSON_SCHEMA, REGEX, RULES

_Write = Callable[[str], str]  # formats a special token


def final(answer: AnswerGrammar, continued: bool) -> AnswerGrammar:
    """Returns the grammar of an answer whose text for the user matches `answer`, or begins in the prompt."""
    if continued:
        return answer
    return _checked(lambda write: ["start: opened? thoughts final", *_text(answer, write)], answer.param)


def required(names: Mapping[int, str], arguments: Sequence[str], param: str) -> AnswerGrammar:
    """Returns the grammar of one call. `arguments` are rules for `arguments_N` of the function with that number."""
    return _checked(lambda write: ["start: opened? thoughts call", *_calls(names, write), *arguments], param)


def optional(
    names: Mapping[int, str], arguments: Sequence[str], answer: AnswerGrammar | None, param: str
) -> AnswerGrammar:
    """Returns the grammar of an answer, after any texts in the channel `commentary`, or of one call."""
    preamble = f'preamble: {{}} "{harmony.COMMENTARY}" {{}} TEXT {{}} opened'

    def rules(write: _Write) -> list[str]:
        before = preamble.format(*map(write, (harmony.CHANNEL, harmony.MESSAGE, harmony.END)))
        start = "start: opened? thoughts (preamble thoughts)* (final | call)"
        return [start, before, *_text(answer, write), *_calls(names, write), *arguments]

    return _checked(rules, param)


def _checked(rules: Callable[[_Write], list[str]], param: str) -> AnswerGrammar:
    """Checks the grammar as if special tokens were text: only the model's vocabulary has them."""
    structured_output.check(AnswerGrammar(RULES, _source(rules, lark.literal), param))
    return AnswerGrammar(RULES, _source(rules, str), param)


def _source(rules: Callable[[_Write], list[str]], write: _Write) -> str:
    channel, message, end, start = map(write, (harmony.CHANNEL, harmony.MESSAGE, harmony.END, harmony.START))
    common = [
        f'opened: {start} "{harmony.ASSISTANT}"',
        "thoughts: (thought opened)*",
        f'thought: {channel} "{harmony.ANALYSIS}" {message} TEXT {end}',
        r"TEXT: /(.|\n)*/",
    ]
    return "\n".join([*rules(write), *common]) + "\n"


def _text(answer: AnswerGrammar | None, write: _Write) -> list[str]:
    channel, message, constrain = map(write, (harmony.CHANNEL, harmony.MESSAGE, harmony.CONSTRAIN))
    kind = f'(" "? {constrain} "json")?' if answer is not None and answer.kind == JSON_SCHEMA else ""
    return [f'final: {channel} "{harmony.FINAL}" {kind} {message} answer', f"answer: {_answer(answer)}"]


def _answer(answer: AnswerGrammar | None) -> str:
    """Returns the grammar of an answer as a part of rules. It was checked."""
    if answer is None:
        return "TEXT"
    match answer.kind:
        case kind if kind == JSON_SCHEMA:
            return lark.schema(json.loads(answer.source))
        case kind if kind == REGEX:
            return lark.pattern(answer.source)
        case kind if kind == CHOICE:
            return " | ".join(map(lark.literal, json.loads(answer.source)))
        case _:
            return f"%lark {{\n{guidance.as_lark(answer.source)}\n}}"


def _calls(names: Mapping[int, str], write: _Write) -> list[str]:
    channel, message, constrain = map(write, (harmony.CHANNEL, harmony.MESSAGE, harmony.CONSTRAIN))
    heads = [
        f"{lark.literal(f'{name} ')} {constrain} {lark.literal('json')} {message} arguments_{number}"
        for number, name in names.items()
    ]
    to = lark.literal(f"{harmony.COMMENTARY} to={harmony.FUNCTIONS}")
    return [f"call: {channel} {to} function", f"function: {' | '.join(heads)}"]
