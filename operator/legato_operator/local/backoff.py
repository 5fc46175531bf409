"""Delays before a process is restarted. Pure."""


class CrashBackoff:
    """Delays that double from `first` to `longest` seconds, and reset after a run that was ready for `reset_after`."""

    def __init__(self, first: float, longest: float, reset_after: float) -> None:
        self._first = first
        self._longest = longest
        self._reset_after = reset_after
        self._next = first

    def delay(self, healthy_for: float) -> float:
        """Returns the seconds to wait after a run that was ready for `healthy_for` seconds."""
        if healthy_for >= self._reset_after:
            self._next = self._first
        delay = self._next
        self._next = min(self._longest, self._next * 2)
        return delay
