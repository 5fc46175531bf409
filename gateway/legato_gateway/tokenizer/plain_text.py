"""Text of clients in chats is plain text: the text of a special token in it must not become that token.

Otherwise a document could end the user's turn and begin one of the system. A cut within each such text, which the
template copies with it, splits the prompt into parts that are tokenized separately.
"""

import heapq
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from legato_gateway.tokenizer.chat_template import UnreadArguments, WrittenArguments

_WRITERS: Final = ("system", "assistant")
_AROUND: Final = (("<", ">"), ("</", ">"), ("[", "]"))  # templates write them around keys and names
_DIGITS: Final = 24  # of a cut: no template changes digits, and no text contains a cut by accident


class SpecialTexts:
    """The texts of a model's special tokens. Immutable."""

    def __init__(self, texts: Iterable[str]) -> None:
        several = [text for text in texts if len(text) > 1]  # one character cannot be cut
        self._pattern = re.compile(longest_of(several)) if several else None
        self._around = [pair for pair in _AROUND if any(text.startswith(pair[0]) for text in several)]
        self._longest = max(map(len, several), default=0)

    def plain(self, value: Any, cut: str, allowed: Collection[str] = ()) -> Any:
        """Returns a JSON value with a cut in each special text, except for `allowed` ones."""
        if isinstance(value, str):
            text = self._plain_text(value, cut, allowed)
            return WrittenArguments(text) if isinstance(value, WrittenArguments) else text
        if isinstance(value, UnreadArguments):
            return UnreadArguments(self._plain_text(value["INVALID_JSON"], cut, allowed))
        if isinstance(value, Mapping):
            return {self.plain(key, cut, allowed): self.plain(each, cut, allowed) for key, each in value.items()}
        return [self.plain(each, cut, allowed) for each in value] if isinstance(value, list) else value

    def _plain_text(self, text: str, cut: str, allowed: Collection[str]) -> str:
        if self._pattern is None:
            return text
        parts, done = list[str](), 0
        for at in heapq.merge(_cuts(self._pattern, text, allowed), self._edges(self._pattern, text, allowed)):
            if at > done or not parts:
                parts.append(text[done:at])
                done = at
        return cut.join([*parts, text[done:]])

    def _edges(self, pattern: re.Pattern[str], text: str, allowed: Collection[str]) -> list[int]:
        """Returns places of cuts in special texts that begin before this text or end after it, by brackets."""
        begins = {0, max(len(text) - self._longest, 0)}
        return sorted(
            {
                max(begin + at - len(open), 0)
                for open, close in self._around
                for begin in begins
                for at in _cuts(pattern, f"{open}{text[begin : begin + self._longest]}{close}", allowed)
            }
        )


class PlainText:
    """The texts of one request, with a `cut` in each special text. `reasoning` are marks that are not only the model's:
    system prompts show them, and clients send back answers with them."""

    def __init__(self, special: SpecialTexts, reasoning: Collection[str] = ()) -> None:
        self.cut = f"{secrets.randbelow(10**_DIGITS):0{_DIGITS}}"
        self._special = special
        self._reasoning = reasoning

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns messages for the chat template."""
        written = [self._reasoning if message["role"] in _WRITERS else () for message in messages]
        made = [self._special.plain(each, self.cut, by) for each, by in zip(messages, written, strict=True)]
        return [{**each, "role": message["role"]} for each, message in zip(made, messages, strict=True)]

    def values(self, values: Sequence[Any]) -> list[Any]:
        """Returns other JSON values for it."""
        return [self._special.plain(value, self.cut) for value in values]

    def variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of its variables."""
        return {name: self._special.plain(value, self.cut) for name, value in variables.items()}


def _cuts(pattern: re.Pattern[str], text: str, allowed: Collection[str]) -> Iterator[int]:
    """Yields the place after the first character of each special text that is not `allowed`."""
    at = 0
    while match := pattern.search(text, at):
        if match[0] in allowed:
            at = match.end()
        else:
            at = match.start() + 1
            yield at


def longest_of(texts: Iterable[str]) -> str:
    """Returns a regular expression for the longest of these texts at a place, which takes linear time."""
    tree: dict[str, Any] = {}
    for text in texts:
        at = tree
        for char in text:
            at = at.setdefault(char, {})
        at[""] = {}
    return _pattern(tree)


def _pattern(tree: Mapping[str, Any]) -> str:
    """Returns a regular expression for the longest text in a tree of characters, which takes linear time."""
    ways = [re.escape(char) + _pattern(inner) for char, inner in tree.items() if char]
    if not ways:
        return ""
    return f"(?:{'|'.join(ways)}){'?' if '' in tree else ''}"
