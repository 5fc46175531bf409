"""The tokens of an output that a constraint has read, of which the last ones may be rejected drafts."""

from collections.abc import Sequence

REPLACED = 8  # most last tokens that may be replaced


class ReadTokens:
    """Their number, and the last of them."""

    __slots__ = ("_last", "count")

    def __init__(self) -> None:
        self.count = 0
        self._last: list[int] = []

    def shared(self, output: Sequence[int]) -> int | None:
        """Number of leading tokens that `output` has in common with them; None if earlier ones were replaced, too."""
        first = self.count - len(self._last)
        if first > len(output):
            return None
        for place, token in enumerate(self._last, first):
            if place == len(output) or output[place] != token:
                return place
        return self.count

    def keep(self, count: int) -> None:
        """Forgets all after the first `count`."""
        del self._last[max(0, len(self._last) - (self.count - count)) :]
        self.count = count

    def add(self, tokens: Sequence[int]) -> None:
        self.count += len(tokens)
        self._last = [*self._last, *tokens][-REPLACED:]
