"""How many prompt tokens a step may still compute: bounded by tokens, and by time where sequences decode beside."""

from dataclasses import dataclass
from math import inf, sqrt

LEAST_CHUNK = 8  # tokens: so many are computed beside sequences that decode, so that prompts always advance
LATE = 1.5  # times what a step is to take: if it takes longer even with the least chunk, streams are late anyway …
LATE_FACTOR = 2  # … and a chunk may make it so many times as long as with the least one …
LATE_CHUNK = 32  # tokens … but has no more than these
MULTIPLE = 16  # a longer chunk that time cuts short is a multiple of this: kernels compute tiles


@dataclass(slots=True)
class ChunkBudget:
    """What is left of one step for prompts. Attention makes tokens dearer the more context they have: `count` tokens
    from position `start` on are `pairs(count, start)` pairs of a token and what it attends to."""

    tokens: int
    seconds: float = inf  # of what the step is to take, without `decoding`
    decoding: float = 0.0  # seconds that the step takes without prompts
    per_token: float = 0.0  # seconds
    per_pair: float = 0.0  # seconds
    per_scored: float = 0.0  # seconds, beside `per_token`, of a token whose logprob is asked for
    spent: bool = False

    @property
    def exhausted(self) -> bool:
        """Whether no further prompt can begin in this step."""
        return self.tokens <= 0 or (self.spent and self._fitting(self.seconds, 0) < MULTIPLE)

    def count(self, start: int, remaining: int, scoring: bool = False) -> int:
        """How many of `remaining` tokens from position `start` on the step may compute; 0 when it is full. With
        `scoring`, logprobs of theirs are asked for."""
        most = min(remaining, self.tokens)
        if self.seconds == inf:
            return most
        fitting = self._fitting(self.seconds, start, scoring)
        least = 0 if self.spent else self._least(start, scoring)
        if max(fitting, least) >= most:
            return most
        return max(int(fitting) // MULTIPLE * MULTIPLE, least)

    def spend(self, count: int, start: int, scored: int = 0) -> None:
        """`count` tokens from position `start` on are in the step, and logprobs of `scored` of them are asked for."""
        self.tokens -= count
        self.seconds -= self._taken(count, start, scored)
        self.spent = True

    def _least(self, start: int, scoring: bool) -> int:
        """Tokens of the first prompt that the step computes, however late it is."""
        step = self.decoding + self._taken(LEAST_CHUNK, start, LEAST_CHUNK * scoring)
        if step <= LATE * (self.seconds + self.decoding):
            return LEAST_CHUNK
        fitting = min(self._fitting(LATE_FACTOR * step - self.decoding, start, scoring), LATE_CHUNK)
        return int(fitting) // LEAST_CHUNK * LEAST_CHUNK

    def _taken(self, count: int, start: int, scored: int) -> float:
        return self.per_token * count + self.per_pair * pairs(count, start) + self.per_scored * scored

    def _fitting(self, seconds: float, start: int, scoring: bool = False) -> float:
        """Tokens from `start` on that take `seconds`: the positive root of per_pair/2 n² + (per_token + per_pair start)
        n = seconds, in the form that also holds for per_pair = 0."""
        if seconds <= 0:
            return 0.0
        slope = self.per_token + self.per_pair * start + self.per_scored * scoring
        root = slope + sqrt(slope * slope + 2 * self.per_pair * seconds)
        return 2 * seconds / root if root else inf


def pairs(count: int, start: int) -> float:
    """Tokens times the mean context that each attends to."""
    return count * (start + count / 2)
