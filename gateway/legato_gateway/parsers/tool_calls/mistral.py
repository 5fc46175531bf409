"""Calls of Mistral's models, after `[TOOL_CALLS]`: an array of {"name": ..., "arguments": ...}, or with later
tokenizers name{...}, name[ARGS]{...} or name[CALL_ID]id[ARGS]{...}.

https://docs.mistral.ai/capabilities/function_calling, and the tokenizers in https://github.com/mistralai/mistral-common
"""

from typing import Final

from legato_gateway.parsers.tool_calls.json_calls import NAME, read_arguments, read_array, read_object
from legato_gateway.parsers.tool_calls.reading import (
    END,
    Broken,
    Reader,
    skip_space,
    until,
)
from legato_gateway.parsers.tool_calls.said import Said, Schemas

OPEN: Final = "[TOOL_CALLS]"
ARGUMENTS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"
MARKERS: Final = (OPEN, ARGUMENTS, CALL_ID)


def read(out: Said, _names: Schemas) -> Reader[None]:
    """Reads the whole answer. Anything in neither form is text."""
    held = ""
    while (yield from until(OPEN, out.text, held)):
        space: list[str] = []
        char = yield from skip_space(space.append)
        before = OPEN + "".join(space[:-1])
        held = ""
        try:
            if char == "[":
                yield from read_array(out, before + char)
            elif char == "{":
                yield from read_object(out, before=before)
            else:
                yield from _named(out, before, char)
        except Broken as broken:
            held = broken.char


def _named(out: Said, before: str, first: str) -> Reader[None]:
    """Reads a name, perhaps an id, and arguments. Raises Broken."""
    read, char = "", first
    while char not in ("{", END, "\n") and len(read) < 256:
        read += char
        char = yield
    name = read.removesuffix(ARGUMENTS).partition(CALL_ID)[0].strip()
    if char != "{" or not NAME.fullmatch(name):
        out.text(before + read, len(char))
        raise Broken(char)
    out.start(name)
    yield from read_arguments(out)
