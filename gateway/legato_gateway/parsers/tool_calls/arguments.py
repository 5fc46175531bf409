"""Arguments of a call as one JSON object, sent while they are read. Brackets that the model forgets are added."""

from collections.abc import Callable

from legato_gateway.parsers.tool_calls.reading import END, Broken, Reader, json_container, mended_string
from legato_gateway.parsers.tool_calls.said import Said


def read_arguments(
    out: Said, read_string: Callable[[Callable[[str], None]], Reader[None]] = mended_string
) -> Reader[None]:
    """Reads an object from after its first bracket to its last, as arguments of the latest call.

    Raises Broken, after adding what it lacks where other text follows.
    """
    out.arguments("{")
    try:
        yield from json_container(out.arguments, read_string)
    except Broken as broken:
        if broken.char != END:
            out.complete_arguments(len(broken.char))
        raise
