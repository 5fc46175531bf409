"""How often each token is in a sequence, which penalties follow from."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence


class TokenCounts:
    """The different tokens of one sequence, and how often each is in its output.

    They follow from the tokens alone, to which others are only ever appended, and are remembered only to be quick: each
    token is read once, when a draw with penalties first needs it. Used in one thread at a time: that which samples, or
    between steps that which forks the sequence."""

    __slots__ = ("_ids", "_outputs", "_read")

    def __init__(self) -> None:
        self._ids = array("q")  # ascending
        self._outputs = array("q")  # of each of them; 0: it is in the prompt alone
        self._read = 0  # leading tokens that are counted, or are not to be

    def follow(self, tokens: Sequence[int], prompt_len: int, with_prompt: bool) -> tuple["array[int]", "array[int]"]:
        """The different tokens among `tokens`, ascending, and how often each follows the first `prompt_len`: int64, as
        they are until the next call.

        Those of the prompt alone are left out, unless `with_prompt`, which never changes for a sequence."""
        if not self._read:
            self._begin(tokens, prompt_len, with_prompt)
        for token in tokens[self._read :]:
            self._add(token)
        self._read = len(tokens)
        return self._ids, self._outputs

    def copy(self) -> "TokenCounts":
        """For another sequence, which begins with the same tokens."""
        copy = TokenCounts()
        copy._ids, copy._outputs, copy._read = self._ids[:], self._outputs[:], self._read
        return copy

    def _begin(self, tokens: Sequence[int], prompt_len: int, with_prompt: bool) -> None:
        """All at once: each that is inserted moves all after it, which takes long for those of a long prompt."""
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
