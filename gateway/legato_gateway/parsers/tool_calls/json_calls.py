"""A call as one JSON object, {"name": ..., "arguments": {...}}, read while it is written.

Arguments are sent piece by piece once the name is known. If it turns out not to be a call, `raw` is text.
"""

import json
import re
from collections.abc import Callable
from typing import Final

from legato_gateway.parsers.tool_calls.reading import (
    END,
    SPACE,
    Broken,
    Reader,
    json_container,
    json_string,
    mended_string,
    skip_space,
)
from legato_gateway.parsers.tool_calls.said import Said, Schemas

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_ARGUMENTS: Final = ("arguments", "parameters")
_EMPTY: Final = ("null", "{}", '""')


class JSONCall:
    """Reads one object. `names` are the functions that may be called; None: any."""

    def __init__(self, out: Said, names: Schemas | None = None) -> None:
        self._out = out
        self._names = names
        self._name: str | None = None
        self._early: str | None = None  # arguments that came before the name
        self._raw: list[str] = []
        self.started = False

    @property
    def raw(self) -> str:
        """All that was read, until a call starts."""
        return "".join(self._raw)

    def read(self) -> Reader[None]:
        """Reads from after the object's first bracket to its last. Raises Broken."""
        self._raw.append("{")
        char = yield from self._next()
        while char != "}":
            if char != '"':
                raise self._broken(char)
            key = yield from self._string()
            if (char := (yield from self._next())) != ":":
                raise self._broken(char)
            char = yield from self._value(key, (yield from self._next()))
            if char == ",":
                char = yield from self._next()
            elif char != "}":
                raise self._broken(char)
        if not self.started:
            self._start_late()

    def _value(self, key: str, first: str) -> Reader[str]:
        """Reads one value, and returns the character after it."""
        if key == "name" and first == '"' and self._name is None:
            self._name = self._checked((yield from self._string()))
            return (yield from self._next())
        if key in _ARGUMENTS and first == "{" and self._name is not None and not self.started:
            self._start(self._name)
            yield from read_arguments(self._out)
            return (yield from self._next())
        value = [first]
        char = yield from self._any(first, value)
        if key in _ARGUMENTS:
            self._early = "".join(value)
        return char

    def _any(self, first: str, value: list[str]) -> Reader[str]:
        """Reads a value of any kind, and returns the character after it."""

        def keep(char: str) -> None:
            value.append(char)
            self._keep(char)

        if first in "{[":
            yield from json_container(keep)
        elif first == '"':
            yield from json_string(keep)
        else:
            while (char := (yield)) not in ("", ",", "}", *SPACE):
                keep(char)
            self._keep(char)
            if char == END:
                raise Broken(char)
            return char if char not in SPACE else (yield from self._next())
        return (yield from self._next())

    def _start_late(self) -> None:
        """Starts a call whose arguments did not come after its name, when all was read."""
        if self._name is None or (self._names is not None and self._early is None):
            raise self._broken("}")
        given = (self._early or "{}").strip()
        text = _unquoted(given) if given.startswith('"') else given
        if text in _EMPTY:
            text = "{}"
        if not text.startswith("{"):
            raise self._broken("}")
        self._start(self._name)
        self._out.arguments(mended(text))

    def _start(self, name: str) -> None:
        self.started = True
        self._raw.clear()
        self._out.start(name)

    def _checked(self, name: str) -> str:
        if not NAME.fullmatch(name) or (self._names is not None and name not in self._names):
            raise self._broken('"')
        return name

    def _string(self) -> Reader[str]:
        read = ['"']

        def keep(char: str) -> None:
            read.append(char)
            self._keep(char)

        yield from json_string(keep)
        return _unquoted("".join(read))

    def _next(self) -> Reader[str]:
        char = yield from skip_space(self._keep)
        if char == END:
            raise Broken(char)
        return char

    def _keep(self, char: str) -> None:
        if not self.started:
            self._raw.append(char)

    def _broken(self, char: str) -> Broken:
        """Returns the error for `char`, the last one read, which its handler reads again."""
        if not self.started:
            self._raw.pop()
        return Broken(char)


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


def read_array(out: Said, before: str) -> Reader[None]:
    """Reads calls from after an array's first bracket to its last.

    Raises Broken; until a call starts, `before` and the text read so far become text.
    """
    calls = out.calls
    while True:
        space: list[str] = []
        char = yield from skip_space(space.append)
        before = "" if out.calls > calls else before + "".join(space[:-1])
        if char == "{":
            yield from read_object(out, before=before)
        elif char == "]" and not before:
            return
        elif char != "," or before:
            out.text(before, len(char))
            raise Broken(char)


def read_object(out: Said, names: Schemas | None = None, before: str = "") -> Reader[None]:
    """Reads a call from after its first bracket. Raises Broken; unless a call started, `before` and it become text."""
    call = JSONCall(out, names)
    try:
        yield from call.read()
    except Broken as broken:
        if not call.started:
            out.text(before + call.raw, len(broken.char))
        raise


def mended(text: str, whole: bool = False) -> str:
    """Returns a complete JSON object or array with strings mended as by `mended_string`; a broken one unchanged.

    Text after it is dropped; if it must be the `whole` text, it is broken then.
    """
    kept, rest = [text[0]], iter(text[1:])
    reader = json_container(kept.append, mended_string)
    next(reader)
    try:
        for char in rest:
            reader.send(char)
    except StopIteration:
        return text if whole and next(rest, "") else "".join(kept)
    except Broken:
        pass
    return text


def _unquoted(text: str) -> str:
    """Returns the value of a JSON string, or the text itself if it is invalid JSON or Unicode."""
    try:
        said = json.loads(text, strict=False)
        said.encode()
    except ValueError:
        return text
    return str(said)


def read_answer(out: Said, _names: Schemas) -> Reader[None]:
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
