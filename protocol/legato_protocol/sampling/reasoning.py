"""The reasoning part of an output, found by its tokens: gateways count it and workers bound it."""

from collections.abc import Iterable

import msgspec


class ReasoningTokens(msgspec.Struct, frozen=True):
    """The tokens that open and close a model's reasoning. With `open_in_prompt`, the prompt ends within it; otherwise
    the output may begin with `open`, after any `space`.

    With a `header`, `open` opens reasoning wherever these tokens come before it, any number of times, and a grammar
    covers all of the output.
    """

    open: int
    close: int
    open_in_prompt: bool
    space: tuple[int, ...] = ()
    header: tuple[int, ...] = ()


class ReasoningBounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bounds of an output with reasoning, as in a grammar of the kind REASONING: at most `budget` tokens of reasoning,
    then an answer that matches `grammar`."""

    tokens: ReasoningTokens
    budget: int | None = None
    grammar: str = ""
    grammar_kind: str = ""


class ReasoningSpan:
    """Tracks the reasoning of one output: not started, `inside` or `over`. `count` is the number of reasoning tokens,
    `behind` the output position at which the answer begins."""

    __slots__ = ("_latest", "_marks", "_read", "behind", "count", "inside", "over")

    def __init__(self, marks: ReasoningTokens) -> None:
        self._marks = marks
        self._read = 0
        self._latest: tuple[int, ...] = ()  # tokens outside reasoning, as many as a header has
        self.inside = marks.open_in_prompt
        self.over = False
        self.count = 0
        self.behind = 0

    def follow(self, tokens: Iterable[int]) -> None:
        """Continues with these output tokens."""
        for token in tokens:
            if self.over:
                return
            self._read += 1
            if self.inside:
                self._inside(token)
            elif self._marks.header:
                self.inside = token == self._marks.open and self._latest == self._marks.header
                self._latest = (*self._latest, token)[-len(self._marks.header) :]
            elif token == self._marks.open:
                self.inside = True
            elif token not in self._marks.space:
                self.over = True

    def _inside(self, token: int) -> None:
        if token == self._marks.close:
            self.inside, self.over, self.behind = False, not self._marks.header, self._read
        elif token != self._marks.open:
            self.count += 1
