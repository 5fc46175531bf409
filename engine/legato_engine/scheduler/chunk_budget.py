"""How many prompt tokens a step may still compute: bounded by tokens, and by time where sequences decode beside."""

from dataclasses import dataclass
from math import inf, sqrt

LEAST_CHUNK = 8  # tokens: so many are computed however late the step is, so that prompts always advance
LATE = 0.25  # of the time that a step is to take: a prompt has that, too, where those that decode take all of it …
LATE_CHUNK = 32  # tokens … but computes no more than this
MULTIPLE = 16  # a longer chunk that time cuts short is a multiple of this: kernels compute tiles


@dataclass(slots=True)
class ChunkBudget:
    """What is left of one step for prompts. Attention makes tokens dearer the more context they have: `count` tokens
    from position `start` on are `pairs(count, start)` pairs of a token and what it attends to."""

    tokens: int
    seconds: float = inf
    per_token: float = 0.0  # seconds
    per_pair: float = 0.0  # seconds
    per_scored: float = 0.0  # seconds, beside `per_token`, of a token whose logprob is asked for
    late: float = 0.0  # seconds that the first prompt may take however late the step is
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
        fitting, least = self._fitting(self.seconds, start, scoring), 0
        if not self.spent:
            fitting = max(fitting, min(self._fitting(self.late, start, scoring), LATE_CHUNK))
            least = min(LEAST_CHUNK, most)
        if fitting >= most:
            return most
        return max(int(fitting) // MULTIPLE * MULTIPLE, least)

    def spend(self, count: int, start: int, scored: int = 0) -> None:
        """`count` tokens from position `start` on are in the step, and logprobs of `scored` of them are asked for."""
        self.tokens -= count
        self.seconds -= self.per_token * count + self.per_pair * pairs(count, start) + self.per_scored * scored
        self.spent = True

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
