"""Predicts the tokens of one sequence from its earlier text, as compressors of the LZ77 family find repetitions.

Positions with the same last two tokens form a chain, the latest first, through a table by hash. A token is added and
looked up in constant time, and 4 bytes for each token are kept.
"""

from array import array
from collections.abc import Sequence

from legato_engine.scheduler.speculation.drafter import NO_DRAFT, Draft

MOST_READ = 4096  # tokens in one call: a long prompt is read during several steps
MOST_EXAMINED = 8  # positions of a chain
LONGEST = 8  # tokens that are compared: longer repetitions are predicted equally well
LEARNED = 1 / 8  # weight of a new token relative to all earlier ones
EXPECTED = (0.3, 0.4, 0.6, 0.8)  # chances of repetitions of 2, 3, 4 and 8 tokens to go on, before any was seen
_NONE = -1


class RepeatedText:
    """One position of the text before is followed, as long as the tokens after it are those that come.

    The chance that it predicts the next token is learned from all output, whether or not it was drafted.
    """

    def __init__(self, length: int) -> None:
        """`length` is the number of known tokens; the sequence may grow beyond it."""
        size = 1 << min(max(length.bit_length(), 10), 16)
        self._latest = array("i", [_NONE]) * size  # position, by hash
        self._before = array("i")  # the previous one with the same hash, by position
        self._match = _NONE  # the position that is followed
        self._matched = 0  # tokens that were equal up to there
        self._chances = list(EXPECTED)

    def follow(self, tokens: Sequence[int], prompt_len: int) -> bool:
        """Reads tokens after those that were read before; False if some are left."""
        read = len(self._before)
        last = min(len(tokens), read + MOST_READ)
        for place in range(read, last):
            if place >= prompt_len:
                self._compare(tokens, place)
            self._add(tokens, place)
        return last == len(tokens)

    def draft(self, tokens: Sequence[int], most: int) -> Draft:
        """The tokens after the followed position, all of which were read."""
        if self._match == _NONE:
            return NO_DRAFT
        known, chance = len(tokens), 1.0
        drafts, chances = list[int](), list[float]()
        for place in range(self._match + 1, self._match + 1 + most):
            chance *= self._chances[_level(self._matched + len(drafts))]
            chances.append(chance)
            drafts.append(tokens[place] if place < known else drafts[place - known])  # it repeats itself
        return Draft(drafts, chances)

    def _compare(self, tokens: Sequence[int], place: int) -> None:
        """Learns from an output token, and follows another position if it was not predicted."""
        if self._match != _NONE:
            predicted = tokens[self._match + 1] == tokens[place]
            level = _level(self._matched)
            self._chances[level] += (predicted - self._chances[level]) * LEARNED
            if predicted:
                self._match += 1
                self._matched += 1
                return
        self._match, self._matched = self._longest(tokens, place)

    def _longest(self, tokens: Sequence[int], place: int) -> tuple[int, int]:
        """The position with the longest text in common up to `place`, the latest of several, and its tokens."""
        best, most = _NONE, 1
        if place < 1:
            return best, 0
        candidate = self._latest[self._slot(tokens, place)]
        for _ in range(MOST_EXAMINED):
            if candidate == _NONE or most == LONGEST:
                break
            equal = 0
            while equal < min(LONGEST, candidate + 1) and tokens[candidate - equal] == tokens[place - equal]:
                equal += 1
            if equal > most:
                best, most = candidate, equal
            candidate = self._before[candidate]
        return best, most

    def _add(self, tokens: Sequence[int], place: int) -> None:
        if place < 1:
            self._before.append(_NONE)
            return
        slot = self._slot(tokens, place)
        self._before.append(self._latest[slot])
        self._latest[slot] = place

    def _slot(self, tokens: Sequence[int], place: int) -> int:
        return (tokens[place - 1] * 40503 ^ tokens[place] * 30011) & (len(self._latest) - 1)


def _level(matched: int) -> int:
    """The place in `EXPECTED` of a repetition of this many tokens."""
    return min(matched, 4) - 2 if matched < 8 else 3
