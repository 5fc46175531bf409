"""The tokens of an answer's text, without tokens of reasoning, calls and markup."""

from collections import deque
from collections.abc import Iterable, Sequence

from legato_gateway.parsers.tool_calls.said import Place
from legato_gateway.request import TokenText


class TextTokens:
    """Keeps tokens, which come before or with their text, until that is read."""

    def __init__(self) -> None:
        self._waiting: deque[TokenText] = deque()

    def add(self, tokens: Iterable[TokenText]) -> None:
        """Adds tokens in the order of the answer."""
        self._waiting.extend(tokens)

    def take(self, places: Sequence[Place]) -> list[TokenText]:
        """Removes and returns the tokens with text in these places of the answer. Places must ascend between calls.

        A token in two places counts for the first.
        """
        taken = []
        for begin, end in places:
            self.drop(begin)
            while self._waiting and self._waiting[0].offset < end:
                taken.append(self._waiting.popleft())
        return taken

    def drop(self, before: int) -> None:
        """Drops tokens whose text ends before this place."""
        while self._waiting and _end(self._waiting[0]) <= before:
            self._waiting.popleft()


def _end(token: TokenText) -> int:
    """Returns the place after its text; a part of a character counts as one."""
    return token.offset + max(len(token.text), 1)
