"""The position of a sequence in its reasoning, which may have a budget; the answer may have to match a grammar."""

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from legato_engine.grammars.position import GrammarPosition
from legato_engine.grammars.read_tokens import REPLACED, ReadTokens
from legato_grammar.guidance import Grammar
from legato_protocol.sampling.reasoning import ReasoningSpan, ReasoningTokens

_ALL = b""  # all tokens, see `batch.Constraint`


@dataclass(frozen=True, slots=True)
class ReasoningRules:
    """Rules for an output with reasoning between `marks`. Masks have `words` words of 32 bits."""

    marks: ReasoningTokens
    budget: int | None  # tokens
    answer: Grammar | None
    words: int


class ReasoningPosition:
    """Implements `batch.Constraint`."""

    __slots__ = ("_answer", "_earlier", "_read", "_rules", "_span")

    def __init__(self, rules: ReasoningRules) -> None:
        self._rules = rules
        self._span = ReasoningSpan(rules.marks)
        self._answer = GrammarPosition(rules.answer) if rules.answer is not None else None
        self._read = ReadTokens()
        # Spans by the number of tokens read, to return to when drafts are rejected.
        self._earlier: deque[tuple[int, ReasoningSpan]] = deque(maxlen=REPLACED)

    def at_start(self) -> "ReasoningPosition":
        """The same rules for a new sequence."""
        return ReasoningPosition(self._rules)

    def allowed(self, output: Sequence[int], stops: Sequence[int], early: bool) -> bytes:
        """See `batch.Constraint`. Without a grammar, only the budget restricts tokens."""
        self._follow(output)
        span, rules = self._span, self._rules
        spent = span.inside and rules.budget is not None and span.count >= rules.budget
        if rules.marks.header and self._answer is not None:
            mask, close = self._answer.allowed(output, stops, early), rules.marks.close
            ends = spent and mask[close >> 3] >> (close & 7) & 1  # a grammar forbids it within a character
            return self._only(close) if ends else mask
        if spent:
            return self._only(rules.marks.close)
        if span.inside or self._answer is None:
            return self._all_but(stops) if early or self._answer is not None else _ALL
        mask = self._answer.allowed(output[span.behind :], stops, early)
        return mask if span.over else self._with(rules.marks.open, mask)

    def accepted(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        """See `batch.Constraint`."""
        self._follow(output)
        span, answer = self._span, self._answer
        if answer is None:
            return len(drafts)
        if self._rules.marks.header:
            return answer.accepted(output, drafts)
        if span.inside:
            close = self._rules.marks.close
            return drafts.index(close) + 1 if close in drafts else len(drafts)
        return answer.accepted(output[span.behind :], drafts)

    def _follow(self, output: Sequence[int]) -> None:
        behind = self._span.behind
        self._take_back(output)
        if new := output[self._read.count :]:
            self._earlier.append((self._read.count, copy(self._span)))
            self._span.follow(new)
            self._read.add(new)
        if self._answer is not None and self._span.behind != behind and not self._rules.marks.header:
            self._answer = self._answer.at_start()  # it may have read white space before the reasoning

    def _take_back(self, output: Sequence[int]) -> None:
        """Returns to a state before the first token that `output` no longer has."""
        shared = self._read.shared(output)
        if shared == self._read.count:
            return
        while shared is not None and self._earlier:
            count, span = self._earlier.pop()
            if count <= shared:
                self._span = span
                self._read.keep(count)
                return
        self._span, self._read = ReasoningSpan(self._rules.marks), ReadTokens()

    def _only(self, token: int) -> bytes:
        return self._with(token, bytes(4 * self._rules.words))

    def _with(self, token: int, mask: bytes) -> bytes:
        words = np.frombuffer(mask, np.uint32).copy()
        words[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        return words.tobytes()

    def _all_but(self, tokens: Sequence[int]) -> bytes:
        words = np.full(self._rules.words, 0xFFFFFFFF, np.uint32)
        for token in tokens:
            words[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))
        return words.tobytes()
