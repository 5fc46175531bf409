"""Calls of Llama 3.1 and later: the answer is {"name": ..., "parameters": ...}, or several of these between `;`.

https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/#json-based-tool-calling
"""

from typing import Final

from legato_gateway.parsers.tool_calls.json_calls import read_object
from legato_gateway.parsers.tool_calls.reading import END, Broken, Reader, skip_space
from legato_gateway.parsers.tool_calls.said import Said, Schemas

MARKERS: Final = ()  # <|python_tag|> is not shown, and need not be


def read(out: Said, names: Schemas) -> Reader[None]:
    """Reads the whole answer. JSON without the name of an offered function is text: answers may be JSON themselves."""
    before: list[str] = []
    while True:
        char = yield from skip_space(before.append)
        if char == "{":
            try:
                yield from read_object(out, names, "".join(before[:-1]) if not out.calls else "")
            except Broken as broken:
                out.text(broken.char)
                return
        elif char != ";" or not out.calls:
            out.text("".join(before))
            return
        before = []
        if char == END:
            return
