"""Calls as a JSON array of {"name": ..., "arguments": ...}: the format that a grammar enforces for models whose own
format is not plain text."""

from legato_gateway.parsers.tool_calls.json_calls import read_array
from legato_gateway.parsers.tool_calls.reading import Broken, Reader, skip_space
from legato_gateway.parsers.tool_calls.said import Said


def read(out: Said, _names: frozenset[str]) -> Reader[None]:
    """Reads the whole answer. Anything but such an array is text."""
    space: list[str] = []
    char = yield from skip_space(space.append)
    if char != "[":
        out.text("".join(space))
        return
    try:
        yield from read_array(out, "[")
    except Broken as broken:
        out.text(broken.char)
