"""Reads an answer in harmony: reasoning in the channel `analysis`, calls to `functions.NAME`, and text for the user.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
<|message|>{"a": 1}<|call|>
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from legato_gateway.parsers.harmony.tokens import (
    ALL,
    ANALYSIS,
    ASSISTANT,
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FUNCTIONS,
    MESSAGE,
    RETURN,
    START,
)
from legato_gateway.parsers.tool_calls.json_calls import NAME, read_arguments
from legato_gateway.parsers.tool_calls.reading import END as NOTHING
from legato_gateway.parsers.tool_calls.reading import SPACE, Broken, Reader, mended_string
from legato_gateway.parsers.tool_calls.said import Said, Schemas
from legato_gateway.request import TOKEN_MARK as MARK

_MARKS: Final = frozenset(MARK + token for token in ALL)
_OTHERS: Final = (MARK + MESSAGE, MARK + CONSTRAIN)  # where they do not belong
_STARTS: Final = frozenset(mark[:size] for mark in _MARKS for size in range(1, len(mark)))
_CHANNEL: Final = MARK + CHANNEL
_MESSAGE: Final = MARK + MESSAGE
_ENDS: Final = frozenset((NOTHING, _CHANNEL, *(MARK + token for token in (START, END, CALL, RETURN))))
_RECIPIENT: Final = re.compile(rf"(?:^|[\s{MARK}])to=([^\s{MARK}]+)")
_TO_USER: Final = (None, "user", "all", ASSISTANT)
_LONGEST_ROLE: Final = 160  # characters before the first special token: `assistant to=functions.NAME`


def read(out: Said, functions: Schemas) -> Reader[None]:
    """Reads the whole answer, which begins in a message's header, after its role. Without any header, it is text."""
    header, unit = yield from _first_header(out)
    while unit != NOTHING:
        if unit == _MESSAGE:
            unit, header = (yield from _message(out, functions, header)), ""
            continue
        header = "" if unit in _ENDS and unit != _CHANNEL else header + unit
        unit = yield from _unit()


def _first_header(out: Said) -> Reader[tuple[str, str]]:
    """Reads to the first special token, and returns the text before it. A long one is the text of a model that does not
    keep to the format."""
    read, unit = "", (yield from _unit())
    while unit not in _MARKS and unit != NOTHING and len(read) < _LONGEST_ROLE:
        read += unit
        unit = yield from _unit()
    if unit in _MARKS or (unit == NOTHING and _may_be_role(read.lstrip(), out.complete)):
        return read, unit
    out.text(read, len(unit))
    return "", (yield from _text(out.text, unit))


def _may_be_role(read: str, complete: bool) -> bool:
    """True for the beginning of a header; also for the beginning of that if the answer is not `complete`."""
    starts = ("to=", ASSISTANT)
    return read.startswith(starts) or (not complete and any(start.startswith(read) for start in starts))


def _unit(read: str = "") -> Reader[str]:
    """Returns the next character, a special token with its mark, or NOTHING. `read` was read before."""
    read = read or (yield)
    while read in _STARTS:
        char = yield
        if char in (MARK, NOTHING):
            read = char
        elif read + char in _STARTS or read + char in _MARKS:
            read += char
        else:
            return read[1:] + char  # the mark is not a token's
    return read


def _message(out: Said, functions: Schemas, header: str) -> Reader[str]:
    """Reads a message to its end, and returns the token that ended it."""
    out.separate()
    role, _, channel = header.partition(_CHANNEL)
    to = match[1] if (match := _RECIPIENT.search(header)) else None
    name = _function(to, functions)
    if name is not None:
        return (yield from _call(out, name))
    if to not in _TO_USER or _word(role) not in ("", ASSISTANT) or _word(channel) == ANALYSIS:
        return (yield from _text(out.thought, (yield from _unit())))
    return (yield from _text(out.text, (yield from _unit())))


def _word(header: str) -> str:
    """Returns the role, or the channel, that a part of a header begins with."""
    word, _, _ = header.lstrip().partition(MARK)[0].partition(" ")
    return "" if word.startswith("to=") else word


def _function(to: str | None, functions: Schemas) -> str | None:
    """Returns the function that a recipient names, or None. Models forget the prefix."""
    if to is None or not functions:
        return None
    name = to.removeprefix(FUNCTIONS)
    return name if NAME.fullmatch(name) and (name != to or name in functions) else None


def _text(keep: Callable[[str], None], unit: str) -> Reader[str]:
    """Reads text from `unit` on to the end of its message, and returns the token that ended it."""
    while unit not in _ENDS:
        if unit not in _MARKS:
            keep(unit)
        unit = yield from _unit()
    return unit


def _call(out: Said, name: str) -> Reader[str]:
    """Reads arguments to the end of their message. Any but a JSON object become one, with the text as INVALID_JSON."""
    out.start(name)
    unit = yield from _unit()
    while unit in (*SPACE, *_OTHERS):
        unit = yield from _unit()
    if unit == "{":
        return (yield from _object(out))
    read: list[str] = []
    end = yield from _text(read.append, unit)
    if (written := "".join(read).strip()) and (end != NOTHING or out.complete):
        out.arguments(json.dumps({"INVALID_JSON": written}, ensure_ascii=False))
    elif end != NOTHING:
        out.complete_arguments()
    return end


def _object(out: Said) -> Reader[str]:
    """Reads a JSON object after its first bracket, and drops text after it."""
    try:
        yield from read_arguments(out, _string)
    except Broken as broken:
        unit = broken.char and (yield from _unit(broken.char))
    else:
        unit = yield from _unit()
    return (yield from _text(_drop, unit))


def _string(keep: Callable[[str], None]) -> Reader[None]:
    """Reads as `mended_string`, but not beyond a special token. Raises Broken."""
    reader = mended_string(keep)
    next(reader)
    with suppress(StopIteration):
        while True:
            char = yield
            if char == MARK:
                raise Broken(char)
            reader.send(char)


def _drop(_: str) -> None:
    """Ignores text."""
