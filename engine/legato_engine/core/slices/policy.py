"""Decides which waiting workers get a time slice of the cores that they share. Pure: time is passed in.

Steps with tokens come before prompts, in the order of their deadlines: a worker whose sequences decode must start its
next step by `due`, or tokens miss `slo.tpot`. Late steps run in the order of their claims.

A step that only computes prompts takes long, so it can be preempted: a step with tokens begins alongside it, and the
prompts stop between two layers until it has ended. Tokens preempt a single prompt after a pause. If several prompts
wait, tokens wait until they are due: fewer steps with more rows then leave more time to the prompts. Tokens of several
workers preempt no prompts in immediate succession, so prompts get their share under overload, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import inf

STALE = 0.25  # seconds overdue after which an idle worker is assumed to have ended, or to have nothing to decode


class SliceState(IntEnum):
    """The state of a worker's entry. Only others give a slice to a worker that waits."""

    FREE = 0  # without a worker
    IDLE = 1  # between two steps, or without work
    WAITING = 2
    HOLDING = 3


@dataclass(frozen=True, slots=True)
class SliceClaim:
    """A worker's need of its next slice; times are monotonic seconds.

    Its decoding sequences get their tokens in time if the step begins by `due`, and ends by `end`; inf: none decodes.
    From `preempts` on, it begins alongside steps that only compute prompts. It has `prompts` to compute.
    """

    due: float = inf
    end: float = inf
    preempts: float = inf
    prompts: int = 0


@dataclass(frozen=True, slots=True)
class SliceEntry:
    """A worker's entry in the table; `since` is when it claimed a slice.

    Until `rest`, after its last step with tokens, prompts of others go on: third workers must not preempt them.
    """

    number: int
    state: SliceState
    threads: int
    since: float
    claim: SliceClaim
    rest: float = 0.0

    @property
    def urgency(self) -> float:
        """The order of claims, smallest first. Late ones are ordered by arrival, so none of them starves."""
        return max(self.since, self.claim.due) if self.claim.due < inf else self.since

    @property
    def yields(self) -> bool:
        """True if it has a slice in which it only computes prompts."""
        return self.state is SliceState.HOLDING and self.claim.due == inf

    def yields_to(self, claim: SliceClaim, now: float) -> bool:
        """True if the claim's step may begin alongside the prompts of this one."""
        due = claim.due if self.claim.prompts > 1 else claim.preempts
        return self.yields and max(claim.preempts, due) <= now


def next_workers(entries: Iterable[SliceEntry], cores: int, now: float) -> list[int]:
    """Returns the workers whose slices can begin now: each thread has a core, or shares it with one that yields."""
    everyone = list(entries)
    free = cores - sum(entry.threads for entry in everyone if entry.state is SliceState.HOLDING)
    numbers = []
    for entry in sorted((e for e in everyone if e.state is SliceState.WAITING), key=lambda entry: entry.urgency):
        if entry.threads > free + _yielded(entry, everyone, now):
            if entry.claim.due < inf:
                break  # later tokens do not pass it, or it would starve
            free = min(free, 0)  # later ones pass a prompt only on cores that yield, likewise
            continue
        free -= entry.threads
        numbers.append(entry.number)
    return numbers


def _yielded(entry: SliceEntry, everyone: list[SliceEntry], now: float) -> int:
    """Returns the threads of prompts that the entry's step may preempt."""
    if any(other.rest > now for other in everyone if other is not entry):
        return 0
    return sum(other.threads for other in everyone if other.yields_to(entry.claim, now))


def gives_way(number: int, entries: Iterable[SliceEntry]) -> bool:
    """True if a worker's step only computes prompts, and a step with tokens runs alongside it."""
    everyone = list(entries)
    holding = [entry for entry in everyone if entry.state is SliceState.HOLDING and not entry.yields]
    return bool(holding) and any(entry.yields for entry in everyone if entry.number == number)


def seconds(number: int, entries: Iterable[SliceEntry], now: float) -> float:
    """Returns the time that a worker's step with tokens may take until its own or others' tokens would be late."""
    limits = []
    for entry in entries:
        if entry.number == number:
            limits.append(entry.claim.end)
            if entry.claim.due == inf:
                return inf  # it yields
        elif not (entry.state is SliceState.IDLE and entry.claim.due < now - STALE):
            limits.append(entry.claim.due)
    return min(limits) - now
