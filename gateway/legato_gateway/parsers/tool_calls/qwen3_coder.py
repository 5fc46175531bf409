"""Calls of Qwen3-Coder, Qwen3-Next, Qwen 3.5 and Nemotron 3: a tag for each argument, whose value is plain text.

https://huggingface.co/Qwen/Qwen3-Coder-30B-A3B-Instruct/blob/main/chat_template.jinja
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from legato_gateway.parsers.tool_calls import hermes, literals
from legato_gateway.parsers.tool_calls.json_calls import NAME
from legato_gateway.parsers.tool_calls.reading import END, Broken, Reader, first_of, one_of, partial
from legato_gateway.parsers.tool_calls.said import Said, Schemas

OPEN: Final = hermes.OPEN
CLOSE: Final = hermes.CLOSE
FUNCTION: Final = "<function="
PARAMETER: Final = "<parameter="
END_FUNCTION: Final = "</function>"
END_PARAMETER: Final = "</parameter>"
MARKERS: Final = (OPEN, CLOSE)
_END_CALL: Final = f"\n{END_FUNCTION}\n{CLOSE}"  # also ends a value that has no end of its own
END_VALUE: Final = (f"\n{END_PARAMETER}", END_PARAMETER, _END_CALL)
_BETWEEN: Final = (OPEN, CLOSE, FUNCTION)
_NEXT: Final = (PARAMETER, END_FUNCTION, CLOSE)
LONGEST_KEY: Final = 256


def read(out: Said, functions: Schemas) -> Reader[None]:
    """Reads the whole answer. Models forget the outer tag, so that a call of an offered function needs none."""
    held, called = "", False  # `called`: a call has just ended
    while mark := (yield from first_of(_BETWEEN, out.text, held)):
        held = ""
        if mark == CLOSE:
            if not called:
                out.text(mark)
            called = False
            continue
        raw, calls = [mark], out.calls
        try:
            if mark == OPEN:
                yield from one_of((FUNCTION,), raw.append)
            yield from _call(out, functions, raw, mark == OPEN)
        except Broken as broken:
            held = broken.char if out.calls > calls else _as_text(out, "".join(raw) + broken.char)
        called = out.calls > calls


def _call(out: Said, functions: Schemas, raw: list[str], any_name: bool) -> Reader[None]:
    """Reads a call from its name to its closing tag. Raises Broken; until the call starts, `raw` collects its text."""
    name = yield from _attribute(raw)
    if not NAME.fullmatch(name) or not (any_name or name in functions):
        raise Broken(END)
    mark = yield from one_of(_NEXT, raw.append)
    out.start(name)
    out.arguments("{")
    separator, tag = "", [mark]
    try:
        while mark == PARAMETER:
            key = yield from _attribute(tag)
            tag.clear()
            out.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            end = yield from value(out, functions.get(name), key, END_VALUE)
            separator = ", "
            mark = yield from one_of(_NEXT, tag.append, END_FUNCTION if end == _END_CALL else "")
    except Broken as broken:
        if broken.char == END:
            raise
        read = "".join(tag) + broken.char
        out.arguments("}", len(read))
        raise Broken(_as_text(out, read)) from None
    out.arguments("}")


def _as_text(out: Said, read: str) -> str:
    """Adds text that turned out not to be a call, except for its end if that may begin one. Returns that end."""
    size = partial(read, _BETWEEN)
    out.text(read[: len(read) - size], size)
    return read[len(read) - size :]


def _attribute(raw: list[str]) -> Reader[str]:
    """Reads a name to its bracket. Raises Broken."""
    name = ""
    while (char := (yield)) != ">":
        if char in (END, "<", "\n") or len(name) == LONGEST_KEY:
            raise Broken(char)
        name += char
        raw.append(char)
    raw.append(char)
    return name


def value(out: Said, function: Mapping[str, Any] | None, key: str, ends: tuple[str, ...]) -> Reader[str]:
    """Reads a value to the first of `ends`, and returns it. A line break before it is dropped if one may be.

    In JSON, a closing tag within a string does not end the value. Raises Broken.
    """
    before = "\n" if ends[0].startswith("\n") else ""
    allowed = literals.kinds(function, key)
    streamed, whole = allowed == literals.STRING, list[str]()

    def keep(text: str, behind: int) -> None:
        if not behind and any(mark.startswith(text) for mark in ends):
            return  # the answer was cut off here, perhaps within a tag
        if streamed:
            out.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            whole.append(text)

    if streamed:
        out.arguments('"')
    if (char := (yield)) == END:
        raise Broken(END)
    end = yield from first_of(ends, keep, "" if char == before else char)
    while end.startswith("</") and "string" not in allowed and literals.in_string("".join(whole)):
        whole.append(end)
        end = yield from first_of(ends, keep)
    if end == END:
        raise Broken(END)
    out.arguments('"' if streamed else literals.typed("".join(whole), allowed))
    return end
