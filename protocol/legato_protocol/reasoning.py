"""Where an output reasons, by its tokens alone: gateways count by it what workers bound by it."""

from collections.abc import Iterable

import msgspec


class ReasoningTokens(msgspec.Struct, frozen=True):
    """The tokens that open and close a model's reasoning. With `begun` the prompt has the first; else the output may
    begin with it, or with `space` before it."""

    open: int
    close: int
    begun: bool
    space: tuple[int, ...] = ()


class ReasoningBounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an output with reasoning has to keep to, as a grammar of the kind REASONING says it: a most number of tokens
    of reasoning, and what the rest has to match, as `SamplingParams` says it."""

    tokens: ReasoningTokens
    budget: int | None = None
    grammar: str = ""
    grammar_kind: str = ""


class ReasoningSpan:
    """Follows one output. It is `inside` its reasoning, or `over` it, or else reasoning may still begin. `count` is how
    many of its tokens are reasoning, and `behind` where in the output the rest begins."""

    __slots__ = ("_marks", "_read", "behind", "count", "inside", "over")

    def __init__(self, marks: ReasoningTokens) -> None:
        self._marks = marks
        self._read = 0
        self.inside = marks.begun
        self.over = False
        self.count = 0
        self.behind = 0

    def follow(self, tokens: Iterable[int]) -> None:
        """The output goes on with these."""
        for token in tokens:
            if self.over:
                return
            self._read += 1
            if self.inside:
                self._inside(token)
            elif token == self._marks.open:
                self.inside = True
            elif token not in self._marks.space:
                self.over = True

    def _inside(self, token: int) -> None:
        if token == self._marks.close:
            self.inside, self.over, self.behind = False, True, self._read
        elif token != self._marks.open:
            self.count += 1
