"""Calls of FunctionGemma, `<start_function_call>call:f{a:<escape>x<escape>,n:1}<end_function_call>`, and of Gemma 4,
which has `<|tool_call>`, `<tool_call|>` and `<|"|>` instead.

https://ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices
"""

import json
from types import MappingProxyType
from typing import Final

from legato_gateway.parsers.tool_calls import literals
from legato_gateway.parsers.tool_calls.json_calls import NAME
from legato_gateway.parsers.tool_calls.reading import END, Broken, Reader, first_of, mended_string, one_of, skip_space
from legato_gateway.parsers.tool_calls.said import Said, Schemas

_CALL: Final = "call:"
_QUOTES: Final = MappingProxyType({"<start_function_call>": "<escape>", "<|tool_call>": '<|"|>'})  # by the opening mark
_CLOSES: Final = ("<end_function_call>", "<tool_call|>")
STOPS: Final = ("<start_function_response>", "<|tool_response>")  # the model would make up a result
MARKERS: Final = (*_QUOTES, *_QUOTES.values(), *_CLOSES)
_LONGEST_NAME: Final = 160
_DEEPEST: Final = 100  # objects and lists within each other


def in_template(template: str) -> bool:
    """True if a chat template shows its model this format."""
    return any(f"{mark}{_CALL}" in template for mark in _QUOTES)


def read(out: Said, _functions: Schemas) -> Reader[None]:
    """Reads the whole answer. A mark with other content is text."""
    held, called = "", False  # `called`: a call has just ended
    while mark := (yield from first_of((*_QUOTES, *_CLOSES), out.text, held)):
        held = ""
        if mark in _CLOSES:
            if not called:
                out.text(mark)
            called = False
            continue
        raw, calls = [mark], out.calls
        try:
            yield from _call(out, raw, _QUOTES[mark])
        except Broken as broken:
            held = broken.char
            if out.calls == calls:
                out.text("".join(raw), len(held))
            elif held:
                out.complete_arguments(len(held))
        called = out.calls > calls


def _call(out: Said, raw: list[str], quote: str) -> Reader[None]:
    """Reads a call. Raises Broken; until it starts, `raw` collects its text."""
    yield from one_of((_CALL,), raw.append)
    name = ""
    while (char := (yield)) != "{":
        if char in (END, "<", "\n") or len(name) == _LONGEST_NAME:
            raise Broken(char)
        name += char
        raw.append(char)
    if not NAME.fullmatch(name.strip()):
        raise Broken(char)
    out.start(name.strip())
    yield from _object(out, quote, 0)


def _object(out: Said, quote: str, depth: int) -> Reader[None]:
    """Reads an object after its bracket. Raises Broken."""
    out.arguments("{")
    separator, end = "", ","
    while end == ",":
        key, end = yield from _plain(":}")
        if end == "}":
            break
        for mark in (quote, '"'):
            key = key.strip().removeprefix(mark).removesuffix(mark)
        out.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        end = yield from _value(out, quote, "}", depth)
        separator = ", "
    out.arguments("}")


def _list(out: Said, quote: str, depth: int) -> Reader[None]:
    """Reads a list after its bracket. Raises Broken."""
    out.arguments("[")
    char = yield from skip_space(_drop)
    while char != "]":
        if (yield from _value(out, quote, "]", depth, char)) == "]":
            break
        out.arguments(", ")
        char = yield from skip_space(_drop)
    out.arguments("]")


def _value(out: Said, quote: str, close: str, depth: int, first: str = "") -> Reader[str]:
    """Reads a value, and returns the comma or bracket after it. `first` was read before. Raises Broken."""
    char = first or (yield from skip_space(_drop))
    if char in ("{", "["):
        if depth == _DEEPEST:
            raise Broken(char)
        yield from (_object if char == "{" else _list)(out, quote, depth + 1)
    elif char == '"':
        out.arguments(char)
        yield from mended_string(out.arguments)
    else:
        read = char
        while read != quote and quote.startswith(read) and read:
            if (char := (yield)) == END:
                raise Broken(char)
            read += char
        if read != quote:
            return (yield from _bare(out, close, read))
        out.arguments('"')
        if not (yield from first_of((quote,), lambda text, behind: _text(out, text, behind, quote))):
            raise Broken(END)
        out.arguments('"')
    rest, end = yield from _plain(f",{close}")
    if rest.strip():
        raise Broken(end)
    return end


def _bare(out: Said, close: str, read: str) -> Reader[str]:
    """Reads a number, a word or text without quotes. Raises Broken."""
    if read[-1:] in (",", close):
        text, end = read[:-1], read[-1:]
    else:
        text, end = yield from _plain(f",{close}", read)
    out.arguments(literals.to_json(literals.typed(text.strip(), literals.ANY - literals.STRING)))
    return end


def _plain(ends: str, read: str = "") -> Reader[tuple[str, str]]:
    """Reads to one of these characters, and returns the text before it, and it. Raises Broken."""
    while (char := (yield)) not in ends or char == END:
        if char == END:
            raise Broken(char)
        read += char
    return read, char


def _text(out: Said, text: str, behind: int, quote: str) -> None:
    """Adds a part of a string, except for the beginning of its end where the answer is cut off."""
    if behind or not quote.startswith(text):
        out.arguments(json.dumps(text, ensure_ascii=False)[1:-1], behind)


def _drop(_: str) -> None:
    """Ignores space."""
