"""Forecasts the most blocks that growing sequences will need at one time. Pure.

Sequences get a token in each step, and free the blocks of their output when they end. Those that end first make room
for the others, so together they need less than the sum of what each needs until its own end. This follows the
Past-Future scheduler (Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025): the need
is largest just before one of the ends. There, lengths are drawn from recent answers; here, each is their 95th
percentile. Times until ends are rounded up by less than an eighth, so that thousands of sequences share some sixty
ends.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_BITS = 4  # significant ones of a rounded number of steps


class Growth(NamedTuple):
    """The further need of one sequence: `blocks` in the next `steps` steps. Then it ends, and frees these and `freed`
    of its present ones. If its end is unknown, `freed` is -`blocks`: it keeps them."""

    steps: int
    blocks: int
    freed: int = 0

    def at(self, step: int, end: int) -> float:
        """Returns the blocks that it needs at a step if it ends at step `end`; negative once it has ended."""
        if step >= end:
            return self.blocks if step == end else -self.freed
        return 1 + (self.blocks - 1) * step / self.steps if self.blocks else 0.0


NONE = Growth(1, 0)


def rounded(steps: int) -> int:
    """Returns `steps`, rounded up to four significant bits."""
    shift = max(0, steps.bit_length() - _BITS)
    return -(-steps >> shift) << shift


@dataclass(slots=True)
class _Ending:
    """Sums over the sequences that end at a step: blocks then, present blocks that they free, and blocks before: `base`
    and `slope` for each step."""

    blocks: int = 0
    freed: int = 0
    base: int = 0
    slope: float = 0.0


class _End(NamedTuple):
    """The need just before an end, and its parts: of sequences that end then or later, and of those that have ended."""

    step: int
    blocks: float  # at this step
    base: int  # of sequences that end then or later: blocks at step 0 …
    slope: float  # … and for each step
    freed: int  # by sequences that have ended


class GrowthForecast:
    """`total` is the sum of all blocks: the need if no sequence ended before another."""

    def __init__(self, growths: Iterable[Growth]) -> None:
        self.total = 0
        self._count = self._steps = self._freed = 0  # of all
        self._ending: dict[int, _Ending] = {}  # by step
        self._ends: list[_End] | None = None  # in order of time; None: a sequence was added since
        for growth in growths:
            self.add(growth)

    def add(self, growth: Growth) -> None:
        """Adds a sequence that starts now."""
        steps, blocks, freed = growth
        self.total += blocks
        self._count += 1
        self._steps += steps
        self._freed += freed
        self._ends = None
        end = rounded(steps)
        if (ending := self._ending.get(end)) is None:
            ending = self._ending[end] = _Ending()
        ending.blocks += blocks
        ending.freed += freed
        if blocks:
            ending.base += 1
            ending.slope += (blocks - 1) / steps

    def peak(self, other: Growth = NONE) -> int:
        """Returns the most blocks that all need at one time, together with one that starts now; at least 0."""
        if self._ends is None:
            self._ends = self._find_ends()
        last = rounded(other.steps)
        most = self._at(last) + other.blocks
        for end in self._ends:
            most = max(most, end.blocks + other.at(end.step, last))
        return int(max(0.0, most) + 1e-6)  # a sum of fractions may be just below

    def usual(self, outputs: int) -> Growth:
        """Returns the growth of another sequence, as long as these on average; they have `outputs` tokens so far."""
        if not self._steps:
            return NONE
        steps = round((self._steps + outputs) / self._count)
        return Growth(steps, math.ceil(steps * self.total / self._steps))

    def _at(self, step: int) -> float:
        """Returns the need of all at a step."""
        assert self._ends is not None
        position = bisect_left(self._ends, step, key=lambda end: end.step)
        if position == len(self._ends):
            return -self._freed
        end = self._ends[position]
        return end.blocks if end.step == step else end.base + end.slope * step - end.freed

    def _find_ends(self) -> list[_End]:
        ends, base, slope, freed = [], 0, 0.0, self._freed
        for step in sorted(self._ending, reverse=True):
            ending = self._ending[step]
            freed -= ending.freed
            blocks = base + slope * step + ending.blocks - freed
            base += ending.base
            slope += ending.slope
            ends.append(_End(step, blocks, base, slope, freed))
        return ends[::-1]
