"""Counts of the tokens of a sequence, for penalties."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence


class TokenCounts:
    """The distinct tokens of one sequence, and the number of times that each is in its output.

    This is a cache: counts follow from the tokens, which only grow. Each token is read once, when a draw with penalties
    first needs it. Used by one thread at a time: the sampling thread, or between steps the thread that forks the
    sequence.
    """

    __slots__ = ("_ids", "_outputs", "_read")

    def __init__(self) -> None:
        self._ids = array("q")  # ascending
        self._outputs = array("q")  # output count of each; 0: only in the prompt
        self._read = 0  # leading tokens that were read

    def follow(self, tokens: Sequence[int], prompt_len: int, with_prompt: bool) -> tuple["array[int]", "array[int]"]:
        """Returns the distinct tokens among `tokens`, ascending, and their counts after the first `prompt_len`.

        Both are int64 and valid until the next call. Tokens that are only in the prompt are included if `with_prompt`,
        which must not change for a sequence.
        """
        if not self._read:
            self._begin(tokens, prompt_len, with_prompt)
        for token in tokens[self._read :]:
            self._add(token)
        self._read = len(tokens)
        return self._ids, self._outputs

    def copy(self) -> "TokenCounts":
        """A copy for another sequence that begins with the same tokens."""
        copy = TokenCounts()
        copy._ids, copy._outputs, copy._read = self._ids[:], self._outputs[:], self._read
        return copy

    def _begin(self, tokens: Sequence[int], prompt_len: int, with_prompt: bool) -> None:
        """Counts all tokens in one batch: single inserts into the sorted array are slow for a long prompt."""
        outputs = Counter(tokens[prompt_len:])
        ids = sorted(outputs.keys() | tokens[:prompt_len] if with_prompt else outputs)
        self._ids, self._outputs = array("q", ids), array("q", [outputs[token] for token in ids])
        self._read = len(tokens)

    def _add(self, token: int) -> None:
        place = bisect_left(self._ids, token)
        if place == len(self._ids) or self._ids[place] != token:
            self._ids.insert(place, token)
            self._outputs.insert(place, 0)
        self._outputs[place] += 1


class DraftedCounts(TokenCounts):
    """Counts for a sequence followed by drafts. The sequence's own counts exclude drafts, which may be rejected."""

    __slots__ = ("_sequence",)

    def __init__(self, sequence: TokenCounts) -> None:
        super().__init__()
        self._sequence = sequence

    def follow(self, tokens: Sequence[int], prompt_len: int, with_prompt: bool) -> tuple["array[int]", "array[int]"]:
        return self._sequence.copy().follow(tokens, prompt_len, with_prompt)
