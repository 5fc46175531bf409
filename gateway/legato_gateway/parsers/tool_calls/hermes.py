"""Calls of Hermes 2 and 3, Qwen 2.5 and Qwen 3: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.

https://github.com/NousResearch/Hermes-Function-Calling
"""

from typing import Final

from legato_gateway.parsers.tool_calls.json_calls import read_array, read_object
from legato_gateway.parsers.tool_calls.reading import Broken, Reader, skip_space, until
from legato_gateway.parsers.tool_calls.said import Said, Schemas

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
MARKERS: Final = (OPEN, CLOSE)


def read(out: Said, _names: Schemas) -> Reader[None]:
    """Reads the whole answer. A tag with other content is text; SmolLM2 puts a list of calls into one tag."""
    held = ""
    while (yield from until(OPEN, out.text, held)):
        held = ""
        space: list[str] = []
        char = yield from skip_space(space.append)
        before, calls = OPEN + "".join(space[:-1]), out.calls
        try:
            if char == "{":
                yield from read_object(out, before=before)
            elif char == "[":
                yield from read_array(out, before + char)
            else:
                out.text(before, len(char))
                held = char
                continue
        except Broken as broken:
            held = broken.char
            if out.calls == calls:
                continue
        yield from until(CLOSE, _ignore, held)
        held = ""


def _ignore(_: str, _behind: int) -> None:
    """Drops text between a call and its closing tag."""
