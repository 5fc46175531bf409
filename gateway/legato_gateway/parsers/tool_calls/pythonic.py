"""Calls of Llama 3.2, Llama 4 and ToolACE, a list in Python: `[get_weather(city="Paris"), now()]`.

https://www.llama.com/docs/model-cards-and-prompt-formats/llama4/#zero-shot-function-calling
"""

import json
import re
from typing import Final

from legato_gateway.parsers.tool_calls import literals
from legato_gateway.parsers.tool_calls.reading import END, Broken, Reader, one_of, skip_space
from legato_gateway.parsers.tool_calls.said import Said, Schemas

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,127}")
MARKERS: Final = ()  # <|python_start|> and <|python_end|> are not shown, and need not be
_FENCES: Final = ("```tool_code\n", "```python\n")  # Gemma 3 writes them around a list
_WORD: Final = re.compile(r"[A-Za-z0-9_.]*")


def read(out: Said, names: Schemas) -> Reader[None]:
    """Reads the whole answer. A list that does not start with an offered function is text."""
    raw: list[str] = []
    char = yield from skip_space(raw.append)
    if fenced := char == "`":
        char = yield from _fence(raw)
    if char != "[":
        out.text("".join(raw))
        return
    try:
        while char != "]":
            yield from _call(out, names, raw)
            raw.clear()
            char = yield from skip_space(raw.append)
            if char not in (",", "]"):
                raw.pop()
                raise Broken(char)
            raw.clear()
        if fenced:
            yield from one_of(("```",), raw.append)
    except Broken as broken:
        out.text("".join(raw) + broken.char)


def _fence(raw: list[str]) -> Reader[str]:
    """Reads the rest of a fence, and returns the character after it; END if it is no fence of calls."""
    read = "`"
    while read not in _FENCES:
        char = yield
        raw.append(char)
        read += char
        if char == END or not any(fence.startswith(read) for fence in _FENCES):
            return END
    return (yield from skip_space(raw.append))


def _call(out: Said, names: Schemas, raw: list[str]) -> Reader[None]:
    """Reads one call to its last bracket. Raises Broken; until the call starts, `raw` collects its text."""
    name, char = yield from _word(raw)
    if char != "(" or name not in names:
        raise Broken(char)
    out.start(name)
    out.arguments("{")
    raw.clear()
    separator = ""
    while True:
        key, char = yield from _word([])
        if char == ")" and not key:
            break
        if char != "=" or not key:
            raise Broken(char)
        value, char = yield from _value()
        out.arguments(f"{separator}{json.dumps(key)}: {literals.to_json(value.strip())}")
        separator = ", "
        if char == ")":
            break
    out.arguments("}")


def _word(raw: list[str]) -> Reader[tuple[str, str]]:
    """Reads a name with the spaces around it, and the next character. Raises Broken at the end of the text."""
    char = yield from skip_space(raw.append)
    word = ""
    while char != END and _WORD.fullmatch(char):
        word += char
        char = yield
        raw.append(char)
    if char != END and char in " \t\r\n":
        char = yield from skip_space(raw.append)
    raw.pop()
    if char == END:
        raise Broken(char)
    return word, char


def _value() -> Reader[tuple[str, str]]:
    """Reads a value, and the comma or bracket after it. Raises Broken."""
    value, depth, quote, escaped = "", 0, "", False
    while True:
        char = yield
        if char == END:
            raise Broken(char)
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quote = char
        elif not depth and char in ",)":
            return value, char
        else:
            depth += (char in "([{") - (char in ")]}")
        value += char
