"""Converts tokens to text, a few at a time: complete characters only, and never beyond a stop string."""

import codecs
from collections.abc import Iterable, Sequence

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one choice. All pushes and the flush, joined, are the decoded bytes of all tokens.

    `table[id]` are a token's bytes; an id beyond the table (padding of the vocabulary) shows nothing.
    """

    __slots__ = ("_decoder", "_table")

    def __init__(self, table: Sequence[bytes]) -> None:
        self._table = table
        self._decoder = _utf8("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """Returns the characters that these tokens complete. Bytes of an incomplete one are withheld."""
        table, size = self._table, len(self._table)
        return self._decoder.decode(b"".join([table[token] for token in token_ids if token < size]))

    def flush(self) -> str:
        """Returns the withheld text at the end: an incomplete character shows as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Ends a text before the first stop string, or after it with `include`, whatever pieces the text comes in.

    The first stop string is the one complete first, and the longest of those that end together. `hit` is that string.
    """

    __slots__ = ("_held", "_include", "_shown", "_stops", "hit")

    def __init__(self, stops: Iterable[str], include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._include = include
        self._held = ""
        self._shown = 0  # characters of `_held` that were shown: an included stop string hides none
        self.hit: str | None = None

    def push(self, text: str, ends: bool = True) -> str:
        """Returns the text that can be shown by now. A possible start of a stop string is withheld.

        Without `ends`, a stop string that is complete with this text has no effect.
        """
        if not self._stops:
            return text
        if self.hit is not None:
            return ""
        known = len(self._held)
        text = self._held + text
        first = ((text.find(stop, max(0, known - len(stop) + 1)), stop) for stop in self._stops)  # that ends behind it
        hits = [(at + len(stop), at, stop) for at, stop in first if at >= 0]
        if hits and ends:
            end, at, self.hit = min(hits)
            self._held = ""
            return text[self._shown : end] if self._include else text[:at]
        keep = min((self._open_at(text, stop) for stop in self._stops), default=len(text))
        self._held = text[keep:]
        if not self._include:
            return text[:keep]
        shown, self._shown = self._shown, len(self._held)
        return text[shown:]

    def flush(self) -> str:
        """Returns the withheld text when the text ends without a stop string."""
        held, self._held = self._held[self._shown :], ""
        return held

    @staticmethod
    def _open_at(text: str, stop: str) -> int:
        """Returns the start of the longest end of `text` that `stop` starts with, or the text's length."""
        at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
        while at >= 0:
            if stop.startswith(text[at:]):
                return at
            at = text.find(stop[0], at + 1)
        return len(text)
