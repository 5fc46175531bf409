"""Which tokens of an answer are told with the text of its messages, where reasoning and calls are in it too."""

from collections import deque
from collections.abc import Iterable, Sequence

from legato_gateway.parsers.tool_calls.said import Place
from legato_gateway.request import TokenText


class TextTokens:
    """Tokens come no later than their text is read, and wait here until it is known what that is."""

    def __init__(self) -> None:
        self._waiting: deque[TokenText] = deque()

    def add(self, tokens: Iterable[TokenText]) -> None:
        """In the order of the answer."""
        self._waiting.extend(tokens)

    def take(self, places: Sequence[Place]) -> list[TokenText]:
        """Those with text in these places of the answer, none of which is before one asked for earlier. Of two places,
        a token that is in both is told with the first."""
        found = []
        for begin, end in places:
            self.drop(begin)
            while self._waiting and self._waiting[0].offset < end:
                found.append(self._waiting.popleft())
        return found

    def drop(self, before: int) -> None:
        """Forgets those whose text ends before this place."""
        while self._waiting and _end(self._waiting[0]) <= before:
            self._waiting.popleft()


def _end(token: TokenText) -> int:
    """The place behind its text; a part of a character counts as one."""
    return token.offset + max(len(token.text), 1)
