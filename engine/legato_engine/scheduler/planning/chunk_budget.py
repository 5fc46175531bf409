"""The prompt tokens that a step may still compute: limited by a count, and by time if the step also decodes."""

from dataclasses import dataclass
from math import inf, sqrt

LEAST_CHUNK = 8  # tokens that a step with decodes computes in any case, so that prompts always advance
LATE = (
    1.5  # times the target: if a step with the least chunk takes longer, tokens are late in any case, and the chunk …
)
LATE_FACTOR = 2  # … may make the step this many times as long as with the least chunk …
LATE_CHUNK = 32  # … but has at most this many tokens
MULTIPLE = 16  # a longer chunk that time limits is a multiple of this, since kernels compute tiles


@dataclass(slots=True)
class ChunkBudget:
    """The budget that is left for prompts in a step.

    The cost of attention grows with the context: `count` tokens from position `start` on make `pairs(count, start)`
    pairs of a token and one that it attends to.
    """

    tokens: int
    seconds: float = inf  # of the step's target, without `decoding`
    decoding: float = 0.0  # seconds that the step takes without prompts
    per_token: float = 0.0  # seconds
    per_pair: float = 0.0  # seconds
    per_scored: float = 0.0  # additional seconds for a token whose logprob is requested
    least: int | None = None  # tokens that the step still computes in any case; None before the first prompt

    @property
    def exhausted(self) -> bool:
        """True if no further prompt can start in this step."""
        return self.tokens <= 0 or (self.least == 0 and self._fitting(self.seconds, 0) < MULTIPLE)

    def count(self, start: int, remaining: int, scoring: bool = False) -> int:
        """Number of the `remaining` tokens from position `start` on that the step may compute; 0 if it is full.

        With `scoring`, their logprobs are requested.
        """
        most = min(remaining, self.tokens)
        if self.seconds == inf:
            return most
        fitting = self._fitting(self.seconds, start, scoring)
        least = self._least(start, scoring)
        if max(fitting, least) >= most:
            return most
        return max(int(fitting) // MULTIPLE * MULTIPLE, least)

    def spend(self, count: int, start: int, scored: int = 0) -> None:
        """Adds `count` tokens from position `start` on to the step; logprobs of `scored` of them are requested."""
        self.least = max(0, self._least(start, scored > 0) - count)
        self.tokens -= count
        self.seconds -= self._taken(count, start, scored)

    def _least(self, start: int, scoring: bool) -> int:
        """Tokens that the step still computes in any case: a chunk of the first prompt, or several short prompts."""
        if self.least is not None:
            return self.least
        step = self.decoding + self._taken(LEAST_CHUNK, start, LEAST_CHUNK * scoring)
        if step <= LATE * (self.seconds + self.decoding):
            return LEAST_CHUNK
        fitting = min(self._fitting(LATE_FACTOR * step - self.decoding, start, scoring), LATE_CHUNK)
        return int(fitting) // LEAST_CHUNK * LEAST_CHUNK

    def _taken(self, count: int, start: int, scored: int) -> float:
        return self.per_token * count + self.per_pair * pairs(count, start) + self.per_scored * scored

    def _fitting(self, seconds: float, start: int, scoring: bool = False) -> float:
        """Number of tokens from `start` on that take `seconds`.

        It is the positive root of per_pair/2 n² + (per_token + per_pair start) n = seconds, in the form that also holds
        for per_pair = 0.
        """
        if seconds <= 0:
            return 0.0
        slope = self.per_token + self.per_pair * start + self.per_scored * scoring
        root = slope + sqrt(slope * slope + 2 * self.per_pair * seconds)
        return 2 * seconds / root if root else inf


def pairs(count: int, start: int) -> float:
    """Number of tokens times the mean context that they attend to."""
    return count * (start + count / 2)
