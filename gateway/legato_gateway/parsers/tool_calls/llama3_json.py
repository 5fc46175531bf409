"""Calls as Llama 3.1 and later write them: the answer is {"name": ..., "parameters": ...}, or several between `;`.

https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/#json-based-tool-calling
"""

from typing import Final

from legato_gateway.parsers.tool_calls.json_calls import read_object
from legato_gateway.parsers.tool_calls.reading import END, Broken, Reader, skip_space
from legato_gateway.parsers.tool_calls.said import Said

PYTHON_TAG: Final = "<|python_tag|>"
MARKERS: Final = ()  # the tag is not shown, and needs not be


def read(out: Said, names: frozenset[str]) -> Reader[None]:
    """The whole answer. JSON that names none of the functions is text: answers may be JSON themselves."""
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
