"""Tokens to text, a few at a time: whole characters only, and never beyond a stop string."""

import codecs
from collections.abc import Iterable, Sequence

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one choice. All pushes and the flush joined are the bytes of all tokens decoded at once.

    `table[id]` are a token's bytes; an id beyond the table (padding of the vocabulary) shows as nothing.
    """

    __slots__ = ("_decoder", "_table")

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = _utf8("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens complete. Bytes of one that is still incomplete are held back."""
        table, size = self._table, len(self._table)
        return self._decoder.decode(b"".join([table[token] for token in token_ids if token < size]))

    def flush(self) -> str:
        """What is held back, at the end: an incomplete character shows as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Ends a text before the first stop string in it, whatever pieces the text comes in; behind it with `include`.

    First is the one that is complete first; among those that end together, the longest. `hit` is that string.
    """

    __slots__ = ("_held", "_include", "_shown", "_stops", "hit")

    def __init__(self, stops: Iterable[str], include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include
        self._held = ""
        self._shown = 0  # characters of `_held` that were shown all the same: a stop string that is included hides none
        self.hit: str | None = None

    def push(self, text: str, ends: bool = True) -> str:
        """The text that can be shown by now. What could be the start of a stop string is held back. Without `ends`, a
        stop string that is complete with this text ends nothing."""
        if not self._stops:
            return text
        if self.hit is not None:
            return ""
        known = len(self._held)
        text = self._held + text
        first = ((text.find(stop, max(0, known - len(stop) + 1)), stop) for stop in self._stops)  # that ends behind it
        found = [(at + len(stop), at, stop) for at, stop in first if at >= 0]
        if found and ends:
            end, at, self.hit = min(found)
            self._held = ""
            return text[self._shown : end] if self._include else text[:at]
        keep = min((self._open_at(text, stop) for stop in self._stops), default=len(text))
        self._held = text[keep:]
        if not self._include:
            return text[:keep]
        shown, self._shown = self._shown, len(self._held)
        return text[shown:]

    def flush(self) -> str:
        """What is held back, when the text ends without a stop string."""
        held, self._held = self._held[self._shown :], ""
        return held

    @staticmethod
    def _open_at(text: str, stop: str) -> int:
        """Where the longest end of `text` begins that `stop` begins with; the text's length if there is none."""
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0:
            if stop.startswith(text[at:]):
                return at
            at = text.find(stop[0], at + 1)
        return len(text)
