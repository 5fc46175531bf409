"""Renames fields of a chat, in its errors, to the fields of another API's request that they came from."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from legato_gateway.errors import BadRequest

_MESSAGE = re.compile(r"\bmessages\[(\d+)\]")
_TOOL = re.compile(r"\btools\[(\d+)\](?:\.function\b)?")

Names = Sequence[tuple[re.Pattern[str], str]]  # patterns of a chat's fields, and their replacements


@contextmanager
def rename_in_errors(names: Names, places: Sequence[str] = (), tool_places: Sequence[str] = ()) -> Iterator[None]:
    """Renames fields in errors. `places` are the paths of the chat's messages, `tool_places` of its tools."""

    def renamed(text: str) -> str:
        for pattern, name in names:
            text = pattern.sub(name, text)
        return _placed(_TOOL, _placed(_MESSAGE, text, places), tool_places)

    try:
        yield
    except BadRequest as error:
        error.param = renamed(error.param) if error.param is not None else None
        error.message = renamed(error.message)
        error.args = (error.message,)
        raise


def _placed(pattern: re.Pattern[str], text: str, places: Sequence[str]) -> str:
    return pattern.sub(lambda match: places[int(match[1])] if int(match[1]) < len(places) else match[0], text)
