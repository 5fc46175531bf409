"""Attributes each GPU-hour of a simulation to the first reason for having that worker."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from legato_operator.api import roles
from legato_operator.api.resources import Spec
from legato_operator.autoscaler.decide import DECIDE_EVERY, decide
from legato_operator.autoscaler.decision import PASSING, SAMPLED, PoolDecision, Term
from legato_operator.autoscaler.window import KeptSize, Window
from legato_simulator.baselines.clairvoyant import SLOT
from legato_simulator.engine.scaler import Observation
from legato_simulator.engine.tally import REVERSAL

PARTS = ("work", "whole", "minimum", "headroom", "surge", "load kept", "surge kept", "draining")
STARTING = "starting"  # workers that do not serve yet: they are in the other parts, too
FORESEEN = "foreseen"  # all that would have been necessary with the needs to come known


class MeasuredScaler:
    """The operator's own decision, and GPU-hours by what they were for.

    - work: workers that the arrivals of the present half minute keep busy all the time, as the clairvoyant bound counts
    - whole: the rest of the last one of these
    - minimum: what the manifest's `min` asks for beyond that
    - headroom: what lasting terms need beyond that: utilisation, prompts that would wait, the minute's memory
    - surge: what passing terms need beyond that
    - load kept, surge kept: what the window of `scaleDownStabilization` keeps, as lasting or passing terms needed it
    - draining: workers beyond the desired size, which finish their sequences
    """

    name = "legato"

    def __init__(self, spec: Spec, plan: Sequence[tuple[float, float]], since: float, end: float) -> None:
        """`plan`: workers of prefill and decode that each slot keeps busy. Hours count from `since` to `end`."""
        self._spec, self._plan, self._since, self._end = spec, plan, since, end
        self._hours = dict.fromkeys((*PARTS, STARTING), 0.0)
        self._windows: Mapping[str, Window] = {}
        self._lasting = dict.fromkeys(roles.with_pool(spec), Window())
        self._needs: dict[str, list[int]] = {pool: [] for pool in roles.with_pool(spec)}  # of each look
        self._looked = 0.0
        self._levels: dict[str, tuple[float, ...]] = {}

    @property
    def hours(self) -> dict[str, float]:
        """By `PARTS`, and `STARTING` and `FORESEEN`."""
        first, last = (round(at / DECIDE_EVERY) for at in (self._since, self._end))
        looks = {pool: necessary(needs[:last], first) for pool, needs in self._needs.items()}
        hours = sum(self._gpus(pool) * count * DECIDE_EVERY / 3600 for pool, count in looks.items())
        return {**self._hours, FORESEEN: hours}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        self._count(seen)
        decision = decide(seen.signals, self._windows, self._spec, seen.sizes, seen.now)
        self._windows, self._looked = decision.windows, seen.now
        self._levels = {pool: self._needed(pool, made, seen.now) for pool, made in decision.pools.items()}
        return {pool: made.desired for pool, made in decision.pools.items()}

    def _gpus(self, pool: str) -> int:
        return roles.gpus(self._spec, pool) or 1

    def _needed(self, pool: str, made: PoolDecision, now: float) -> tuple[float, ...]:
        """Workers up to each part but the last: none is less than the one before."""
        slot, bounds = int(now // SLOT), roles.bounds(self._spec, pool)
        work = self._plan[slot][pool == roles.DECODE] if slot < len(self._plan) else 0.0
        confirmed = self._windows[pool].confirmed if made.current else math.inf
        lasting = _workers([term for term in made.terms if term.reason not in PASSING], confirmed)
        needed = _workers(made.terms, confirmed)
        stabilization = self._spec.scaling.scale_down_stabilization
        kept = KeptSize(now + stabilization, lasting)
        window = self._lasting[pool] = self._lasting[pool].add(now, [kept], lasting, lasting, idle=False)
        self._needs[pool].append(min(max(needed, bounds.min), bounds.max))
        levels = (work, math.ceil(work), bounds.min, lasting, needed, window.highest, made.desired)
        return tuple(itertools.accumulate(levels, max))

    def _count(self, seen: Observation) -> None:
        """The time since the look before, with the workers that there were in it: they change with a look alone."""
        hours = max(0.0, min(seen.now, self._end) - max(self._looked, self._since)) / 3600
        workers = seen.signals.workers
        existing = Counter(worker.pool for worker in workers)
        starting = Counter(worker.pool for worker in workers if not (worker.ready or worker.draining))
        for pool, levels in self._levels.items():
            gpu_hours = hours * self._gpus(pool)
            ends = [0.0, *(min(level, existing[pool]) for level in levels), existing[pool]]
            for part, (before, after) in zip(PARTS, itertools.pairwise(ends), strict=True):
                self._hours[part] += gpu_hours * (after - before)
            self._hours[STARTING] += gpu_hours * starting[pool]


def _workers(terms: Sequence[Term], confirmed: int | float) -> int:
    """Workers that the terms need; needs of a sample count as far as they have lasted."""
    known = (min(term.known, confirmed) if term.reason in SAMPLED else term.known for term in terms)
    return math.ceil(max(known, default=0.0) - 1e-6)


def necessary(needs: Sequence[int], first: int) -> int:
    """Workers × looks, from the look `first` on, that cover these needs without a reversal: the fewest, with all needs
    known. No worker leaves within `REVERSAL` of its start, or starts within `REVERSAL` of leaving."""
    least = round(REVERSAL / DECIDE_EVERY)
    return sum(_stays(needs, level, least, first) for level in range(1, max(needs, default=0) + 1))


def _stays(needs: Sequence[int], level: int, least: int, first: int) -> int:
    """Counts polls with a worker of this level, which is needed at polls that need `level` workers."""
    count, begin, end = 0, 0, -least  # of the stay before, which began with the run
    for at in (at for at, need in enumerate(needs) if need >= level):
        if at - end < least:
            end = max(end, at + 1)
            continue
        count += _overlap(begin, end, first, len(needs))
        begin, end = at, at + least
    return count + _overlap(begin, end, first, len(needs))


def _overlap(begin: int, end: int, first: int, last: int) -> int:
    return max(0, min(end, last) - max(begin, first))
