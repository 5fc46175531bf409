"""Sums up the recorded and the replayed sizes of one pool, and their differences."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from legato_simulator.engine.tally import reversals


@dataclass(frozen=True)
class Stretch:
    """A period in which recorded and replayed size differ. Seconds from the first round."""

    pool: str
    since: float
    until: float
    recorded: int
    replayed: int
    reason: str  # of the replayed size
    recorded_reason: str  # of the recorded size; empty if something else scaled the pool

    @property
    def worker_hours(self) -> float:
        """Worker-hours in addition to the recorded ones; negative if fewer."""
        return (self.replayed - self.recorded) * (self.until - self.since) / 3600


@dataclass(frozen=True)
class PoolReplay:
    """The sums of one pool over the recording. Hours are worker-hours of desired sizes, after the limits."""

    recorded_hours: float
    hours: float
    recorded_most: int
    most: int
    differs: float  # share of the time in which the sizes differ, 0 to 1
    recorded_reversals: float  # per hour: changes opposite to one less than 600 s before
    reversals: float
    reasons: Mapping[str, float]  # share of the time by reason, the largest first


class PoolTally:
    """Adds up round by round. Times in seconds from the first round."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._recorded: list[tuple[float, Mapping[str, int]]] = []
        self._replayed: list[tuple[float, Mapping[str, int]]] = []
        self._seconds = self._recorded_seconds = self._differing = 0.0
        self._reasons: dict[str, float] = {}
        self._open: Stretch | None = None
        self._last = (0, 0, "")  # recorded and replayed size, and the reason
        self.differences: list[Stretch] = []

    def advance(self, seconds: float) -> None:
        """Adds `seconds` with the sizes of the last decision."""
        recorded, replayed, reason = self._last
        self._recorded_seconds += recorded * seconds
        self._seconds += replayed * seconds
        self._reasons[reason] = self._reasons.get(reason, 0.0) + seconds
        self._differing += seconds if recorded != replayed else 0.0

    def decide(self, at: float, recorded: int, replayed: int, reason: str, recorded_reason: str) -> None:
        """Sets the sizes from now on."""
        self._last = recorded, replayed, reason
        for changes, size in ((self._recorded, recorded), (self._replayed, replayed)):
            if not changes or changes[-1][1][self._pool] != size:
                changes.append((at, {self._pool: size}))
        known = self._open
        if known is None or (known.recorded, known.replayed) != (recorded, replayed):
            self.interrupt(at)
            if recorded != replayed:
                self._open = Stretch(self._pool, at, at, recorded, replayed, reason, recorded_reason)

    def interrupt(self, at: float) -> None:
        """Ends the current difference, if there is one."""
        known, self._open = self._open, None
        if known is not None and at > known.since:
            self.differences.append(replace(known, until=at))

    def result(self, seconds: float) -> PoolReplay:
        """Returns the sums. `seconds` is the counted time."""
        whole = seconds or 1.0
        shares = {reason: share / whole for reason, share in self._reasons.items()}
        return PoolReplay(
            recorded_hours=self._recorded_seconds / 3600,
            hours=self._seconds / 3600,
            recorded_most=max((sizes[self._pool] for _, sizes in self._recorded), default=0),
            most=max((sizes[self._pool] for _, sizes in self._replayed), default=0),
            differs=self._differing / whole,
            recorded_reversals=reversals(self._recorded, 0.0, seconds)[self._pool],
            reversals=reversals(self._replayed, 0.0, seconds)[self._pool],
            reasons=dict(sorted(shares.items(), key=lambda entry: -entry[1])),
        )
