"""Calls of GLM 4.5 and later: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

https://huggingface.co/zai-org/GLM-4.5/blob/main/chat_template.jinja
"""

import json
from typing import Final

from legato_gateway.parsers.tool_calls import hermes
from legato_gateway.parsers.tool_calls.json_calls import NAME
from legato_gateway.parsers.tool_calls.qwen3_coder import LONGEST_KEY, value
from legato_gateway.parsers.tool_calls.reading import END, Broken, Reader, first_of, one_of, partial
from legato_gateway.parsers.tool_calls.said import Said, Schemas

OPEN: Final = hermes.OPEN
CLOSE: Final = hermes.CLOSE
KEY: Final = "<arg_key>"
VALUE: Final = "<arg_value>"
END_KEY: Final = "</arg_key>"
END_VALUE: Final = "</arg_value>"
MARKERS: Final = (OPEN, CLOSE, KEY, END_KEY, VALUE, END_VALUE)
_NEXT: Final = (KEY, CLOSE)


def read(out: Said, functions: Schemas) -> Reader[None]:
    """Reads the whole answer. A tag with other content is text."""
    held = ""
    while (yield from first_of((OPEN,), out.text, held)):
        held, raw, calls = "", [OPEN], out.calls
        try:
            yield from _call(out, functions, raw)
        except Broken as broken:
            read = "".join(raw) + broken.char
            if out.calls > calls:
                if broken.char == END:
                    return
                out.arguments("}", len(read))
            size = partial(read, (OPEN,))
            out.text(read[: len(read) - size], size)
            held = read[len(read) - size :]


def _call(out: Said, functions: Schemas, raw: list[str]) -> Reader[None]:
    """Reads a call. Raises Broken; then `raw` is text."""
    name = ""
    while (char := (yield)) not in (END, "<") and not (char == "\n" and name.strip()):
        if len(name) == LONGEST_KEY:
            raise Broken(char)
        name += char
        raw.append(char)
    if char == END or not NAME.fullmatch(name.strip()):
        raise Broken(char)
    raw.append(char)
    tag = yield from one_of(_NEXT, raw.append, char.strip())
    out.start(name.strip())
    out.arguments("{")
    separator = ""
    while tag == KEY:
        raw.clear()
        key = yield from _key()
        yield from one_of((VALUE,), raw.append)
        out.arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        yield from value(out, functions.get(name.strip()), key, (END_VALUE,))
        separator = ", "
        raw.clear()
        tag = yield from one_of(_NEXT, raw.append)
    out.arguments("}")


def _key() -> Reader[str]:
    """Reads an argument's name to its closing tag. Raises Broken."""
    read: list[str] = []
    if not (yield from first_of((END_KEY,), lambda text, _: read.append(text))):
        raise Broken(END)
    return "".join(read).strip()
