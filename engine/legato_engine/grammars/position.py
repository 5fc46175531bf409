"""The position of a sequence in its grammar. Used by one thread at a time: one that computes masks in a
step, or between steps the scheduler's, which verifies drafts."""

from collections.abc import Sequence

from legato_engine.grammars.read_tokens import ReadTokens
from legato_engine.scheduler.batch import DeadEnd
from legato_grammar.guidance import Grammar, Matcher

_FULL = 0xFFFFFFFF  # 32 bits of a mask: all of these tokens are allowed


class GrammarPosition:
    """Implements `batch.Constraint`. After a hand-off, a preemption or a fork, a new one replays the output."""

    __slots__ = ("_consumed", "_grammar", "_matcher")

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._matcher: Matcher | None = None
        self._consumed = ReadTokens()

    def at_start(self) -> "GrammarPosition":
        """Returns the start of the same grammar, for a new sequence."""
        return GrammarPosition(self._grammar)

    def allowed(self, output: Sequence[int], stops: Sequence[int], early: bool) -> bytes:
        """See `batch.Constraint`. Releases the interpreter lock for most of its time."""
        matcher, grammar = self._follow(output), self._grammar
        mask = matcher.mask()
        if matcher.error:
            raise DeadEnd(f"its grammar cannot be followed: {matcher.error}")
        words = memoryview(mask).cast("I")
        for token in (*stops, grammar.end):
            words[token >> 5] &= ~(1 << (token & 31)) & _FULL
        if matcher.accepting and not (early and mask != grammar.nothing):
            for token in stops:
                words[token >> 5] |= 1 << (token & 31)
        if mask == grammar.nothing:
            raise DeadEnd("its grammar and its stop tokens allow no token")
        return bytes(mask)

    def accepted(self, output: Sequence[int], drafts: Sequence[int]) -> int:
        """See `batch.Constraint`."""
        try:
            matcher = self._follow(output)
        except DeadEnd:  # the next draw raises it, too
            return 0
        return 0 if matcher.error else matcher.accepted(drafts)

    def _follow(self, output: Sequence[int]) -> Matcher:
        matcher, shared = self._matcher, self._consumed.shared(output)
        if matcher is None or shared is None or not self._take_back(matcher, shared):
            matcher = self._matcher = self._grammar.matcher()
            self._consumed = ReadTokens()
        if new := output[self._consumed.count :]:
            if not matcher.consume(new):
                raise DeadEnd("its existing output does not match its grammar")
            self._consumed.add(new)
        return matcher

    def _take_back(self, matcher: Matcher, shared: int) -> bool:
        """Rolls the matcher back to the first `shared` tokens that it consumed; False if it cannot."""
        replaced = self._consumed.count - shared
        if replaced and (matcher.error or not matcher.take_back(replaced)):
            return False
        self._consumed.keep(shared)
        return True
