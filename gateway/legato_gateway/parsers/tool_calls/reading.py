"""Reads text character by character, by generators that get one at a time, so that pieces can be cut anywhere.

A reader is written as if all of the text were there. `END` comes after the last character.
"""

import json
from collections.abc import Callable, Generator, Sequence
from string import hexdigits
from typing import Final, TypeVar

_T = TypeVar("_T")

Reader = Generator[None, str, _T]
END: Final = ""
SPACE: Final = " \t\r\n"

_OUTSIDE_STRINGS: Final = frozenset("{}[],:+-. \t\r\n0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Broken(Exception):
    """The text breaks the expected format. `char` is the first wrong character; END at the end of the text."""

    def __init__(self, char: str) -> None:
        super().__init__(char)
        self.char = char


def until(marker: str, keep: Callable[[str, int], None], held: str = "") -> Reader[bool]:
    """Reads to the end of `marker`. Returns False if the text ends without it. `keep` and `held` as in `first_of`."""
    return bool((yield from first_of((marker,), keep, held)))


def first_of(markers: Sequence[str], keep: Callable[[str, int], None], held: str = "") -> Reader[str]:
    """Reads to the end of the first marker, and returns it, or END. No marker may begin with another one.

    Text before it goes to `keep`, with the number of characters read after that text. `held` was read before.
    """
    while True:
        while held and not any(marker.startswith(held) for marker in markers):
            keep(held[0], len(held) - 1)
            held = held[1:]
        if held in markers:
            return held
        char = yield
        if char == END:
            keep(held, 0)
            return END
        held += char


def one_of(markers: Sequence[str], keep: Callable[[str], None], read: str = "") -> Reader[str]:
    """Reads one of these markers after space, and returns it. What fits goes to `keep`. Raises Broken.

    `read` was read before.
    """
    while read not in markers:
        char = yield
        if char == END or not (
            any(marker.startswith(read + char) for marker in markers) or (not read and char in SPACE)
        ):
            raise Broken(char)
        keep(char)
        read = (read + char).lstrip()
    return read


def partial(text: str, markers: Sequence[str]) -> int:
    """Returns the length of the longest end of `text` that may begin a marker, less than a whole one."""
    sizes = (size for marker in markers for size in range(1, len(marker)) if text.endswith(marker[:size]))
    return max(sizes, default=0)


def skip_space(keep: Callable[[str], None]) -> Reader[str]:
    """Returns the next character that is not a space, or END. All that is read goes to `keep`."""
    while True:
        char = yield
        keep(char)
        if char == END or char not in SPACE:
            return char


def json_string(keep: Callable[[str], None]) -> Reader[None]:
    """Reads to the end of a JSON string whose opening quote was read. Raises Broken."""
    escaped = False
    while True:
        char = yield
        if char == END:
            raise Broken(char)
        keep(char)
        if char == '"' and not escaped:
            return
        escaped = char == "\\" and not escaped


def mended_string(keep: Callable[[str], None]) -> Reader[None]:
    """Reads as `json_string`, and keeps valid JSON: models write raw line breaks and backslashes.

    Control characters are escaped, and so is a backslash that does not start an escape. Raises Broken.
    """
    held = ""
    while True:
        char = held or (yield)
        held = ""
        if char == END:
            raise Broken(char)
        if char == "\\":
            held = yield from _escape(keep)
        elif char < " ":
            keep(json.dumps(char)[1:-1])
        else:
            keep(char)
            if char == '"':
                return


def _escape(keep: Callable[[str], None]) -> Reader[str]:
    """Reads an escape after its backslash. Returns the character after it, if that had to be read. Raises Broken."""
    read, char = "", (yield)
    if char == "u":
        read, char = "u", (yield)
        while char != END and char in hexdigits:
            read += char
            if len(read) == 5:
                keep("\\" + read)
                return ""
            char = yield
    if char == END:
        raise Broken(char)
    if not read and char in '"\\/bfnrt':
        keep("\\" + char)
        return ""
    keep("\\\\" + read)
    return char


def json_container(
    keep: Callable[[str], None], read_string: Callable[[Callable[[str], None]], Reader[None]] = json_string
) -> Reader[None]:
    """Reads to the end of a JSON object or array whose first bracket was read. Raises Broken."""
    depth = 1
    while depth:
        char = yield
        if char == '"':
            keep(char)
            yield from read_string(keep)
        elif char == END or char not in _OUTSIDE_STRINGS:
            raise Broken(char)
        else:
            keep(char)
            depth += (char in "{[") - (char in "}]")


def missing(written: str) -> str:
    """Returns the quote and brackets that complete a truncated JSON object; empty if it would not be JSON then.

    All of an object is missing where nothing was written.
    """
    if not written:
        return "{}"
    ends: list[str] = []
    quoted = escaped = False
    for char in written:
        if quoted:
            quoted = char != '"' or escaped
            escaped = char == "\\" and not escaped
        elif char == '"':
            quoted = True
        elif char in "{[":
            ends.append("}" if char == "{" else "]")
        elif char in "}]" and ends:
            ends.pop()
    rest = '"' * quoted + "".join(reversed(ends))
    try:
        json.loads(written + rest)
    except (ValueError, RecursionError):
        return ""
    return rest
