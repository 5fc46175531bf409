"""Text of clients in chats is plain text: the text of a special token in it must not become that token.

Otherwise a document could end the user's turn and begin one of the system. A cut within each such text, which the
template copies with it, splits the prompt into parts that are tokenized separately.
"""

import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from legato_gateway.tokenizer.chat_template import UnreadArguments, WrittenArguments

_WRITERS: Final = ("system", "assistant")
_DIGITS: Final = 24  # of a cut: no template changes digits, and no text contains a cut by accident


class SpecialTexts:
    """The texts of a model's special tokens. Immutable."""

    def __init__(self, texts: Iterable[str]) -> None:
        tree: dict[str, Any] = {}
        for text in texts:
            at = tree
            for char in text if len(text) > 1 else "":  # one character cannot be cut
                at = at.setdefault(char, {})
            at[""] = {}
        tree.pop("", None)
        self._pattern = re.compile(_pattern(tree)) if tree else None

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
        if self._pattern is None or (match := self._pattern.search(text)) is None:
            return text
        parts, done = [], 0
        while match is not None:
            at = match.end() if match[0] in allowed else match.start() + 1
            if match[0] not in allowed:
                parts.append(text[done:at])
                done = at
            match = self._pattern.search(text, at)
        return cut.join([*parts, text[done:]])


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
        return [self._special.plain(each, self.cut, by) for each, by in zip(messages, written, strict=True)]

    def values(self, values: Sequence[Any]) -> list[Any]:
        """Returns other JSON values for it."""
        return [self._special.plain(value, self.cut) for value in values]

    def variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of its variables."""
        return {name: self._special.plain(value, self.cut) for name, value in variables.items()}


def _pattern(tree: Mapping[str, Any]) -> str:
    """Returns a regular expression for the longest text in a tree of characters, which takes linear time."""
    ways = [re.escape(char) + _pattern(inner) for char, inner in tree.items() if char]
    if not ways:
        return ""
    return f"(?:{'|'.join(ways)}){'?' if '' in tree else ''}"
