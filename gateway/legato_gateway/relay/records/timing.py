"""Phases of a request's time to first token. Pure: time is passed in, on the clock of timers.

A prefill worker samples the first token itself and hands it off with the KV, so there are three phases: queue, prefill
and hand-off. The decode worker's first step makes the second token.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstTokenPhases:
    """Seconds of each phase. Together they are the time to first token."""

    queue: float  # from arrival to the first step of the prefill, in the gateway and on the worker
    prefill: float
    handoff: float | None  # from the end of prefill to the first token elsewhere; None without a hand-off


class RequestTiming:
    """Follows one request until its first token is reported. Attempts without a token count as queue time."""

    __slots__ = ("_attempt", "_handoff", "_remote", "_reported", "_started", "arrived", "first_token", "paused")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.first_token: float | None = None
        self.paused = 0.0  # seconds for which its client read too slowly
        self._attempt = 0
        self._started: float | None = None
        self._remote = False
        self._handoff: float | None = None
        self._reported = False

    def placed(self, attempt: int, remote: bool) -> None:
        """An attempt was sent to workers. `remote`: its prefill to another worker than its decoding."""
        if self.first_token is None:
            self._attempt, self._started, self._remote, self._handoff = attempt, None, remote, None

    def started(self, attempt: int, now: float) -> None:
        """An attempt is in a step of its worker. The decode worker may report so too, after the first token."""
        if attempt == self._attempt and self._started is None:
            self._started = now

    def handed_off(self, attempt: int, seconds: float) -> None:
        """Records the seconds of a hand-off."""
        if attempt == self._attempt:
            self._handoff = seconds

    def phases(self) -> FirstTokenPhases | None:
        """Returns the phases once, when all are known: the report of a hand-off may follow the token."""
        if self._reported or self.first_token is None or self._started is None:
            return None
        if self._remote and self._handoff is None:
            return None
        self._reported = True
        computed = self.first_token - self._started
        handoff = min(self._handoff or 0.0, computed)
        return FirstTokenPhases(self._started - self.arrived, computed - handoff, handoff if self._remote else None)
