"""Durations of moves between the arena and slower tiers of KV."""

from collections.abc import Iterable

from legato_engine.kvcache.moves import MoveTime, Restore

_SMOOTHING = 0.2


class TierTimes:
    """Seconds of all moves so far, and the smoothed seconds of one restored block; 0 before the first."""

    def __init__(self) -> None:
        self.saving = self.restoring = 0.0
        self.per_restored = 0.0

    def measure(self, times: Iterable[MoveTime]) -> float:
        """Counts moves that have ended. Returns their seconds."""
        seconds = 0.0
        for time in times:
            seconds += time.seconds
            if time.kind is not Restore:
                self.saving += time.seconds
                continue
            self.restoring += time.seconds
            each = time.seconds / time.blocks
            self.per_restored += (each - self.per_restored) * (_SMOOTHING if self.per_restored else 1.0)
        return seconds
