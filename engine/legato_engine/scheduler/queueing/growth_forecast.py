"""Forecasts the most blocks that growing sequences will need at one time. Pure.

Sequences get a token in each step, and free the blocks of their output when they end. Those that end first make room
for the others, so together they need less than the sum of what each needs until its own end. This follows the
Past-Future scheduler (Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025): the need
is largest just before one of the ends. There, lengths are drawn from recent answers; here, each is their 95th
percentile.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Growth(NamedTuple):
    """The further need of one sequence: `blocks` in the next `steps` steps. Then it ends, and frees these and `freed`
    of its present ones. If its end is unknown, `freed` is -`blocks`: it keeps them."""

    steps: int
    blocks: int
    freed: int = 0

    def at(self, step: int) -> float:
        """Returns the blocks that it needs at a step; negative once it has ended."""
        if step >= self.steps:
            return self.blocks if step == self.steps else -self.freed
        return 1 + (self.blocks - 1) * step / self.steps if self.blocks else 0.0


NONE = Growth(1, 0)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The need just before an end, and its parts: of sequences that end then or later, and of those that have ended."""

    step: int
    blocks: float  # at this step
    base: float  # of sequences that end then or later: blocks at step 0 …
    slope: float  # … and for each step
    freed: int  # by sequences that have ended


class GrowthForecast:
    """`total` is the sum of all blocks: the need if no sequence ended before another."""

    def __init__(self, growths: Iterable[Growth]) -> None:
        self._growths = list(growths)
        self.total = sum([growth.blocks for growth in self._growths])
        self._ends: list[_Ends] | None = None  # in order of time; None: a sequence was added since

    def add(self, growth: Growth) -> None:
        """Adds a sequence that starts now."""
        self._growths.append(growth)
        self.total += growth.blocks
        self._ends = None

    def peak(self, other: Growth = NONE) -> int:
        """Returns the most blocks that all need at one time, together with one that starts now; at least 0."""
        if self._ends is None:
            self._ends = _ends(self._growths)
        most = 0.0
        for end in self._ends:
            most = max(most, end.blocks + other.at(end.step))
        return int(max(most, self._at(other.steps) + other.blocks) + 1e-6)  # a sum of fractions may be just below

    def usual(self, outputs: int) -> Growth:
        """Returns the growth of another sequence, as long as these on average; they have `outputs` tokens so far."""
        left = sum([growth.steps for growth in self._growths])
        if not left:
            return NONE
        steps = round((left + outputs) / len(self._growths))
        return Growth(steps, math.ceil(steps * self.total / left))

    def _at(self, step: int) -> float:
        """Returns the need of all at a step."""
        assert self._ends is not None
        position = bisect_left(self._ends, step, key=lambda end: end.step)
        if position == len(self._ends):
            return -sum([growth.freed for growth in self._growths])
        end = self._ends[position]
        return end.blocks if end.step == step else end.base + end.slope * step - end.freed


def _ends(growths: list[Growth]) -> list[_Ends]:
    by_step: dict[int, list[Growth]] = {}
    for growth in growths:
        by_step.setdefault(growth.steps, []).append(growth)
    ends, base, slope = [], 0.0, 0.0
    freed = sum([growth.freed for growth in growths])
    for step in sorted(by_step, reverse=True):
        ending = by_step[step]
        freed -= sum([growth.freed for growth in ending])
        blocks = base + slope * step + sum([growth.blocks for growth in ending]) - freed
        base += sum([growth.blocks > 0 for growth in ending])
        slope += sum([(growth.blocks - 1) / step for growth in ending if growth.blocks])
        ends.append(_Ends(step, blocks, base, slope, freed))
    return ends[::-1]
