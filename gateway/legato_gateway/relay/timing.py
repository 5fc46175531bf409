"""How long a request took to its first token, and with what. Pure: time is passed in, on the clock of timers.

A prefill worker samples the first token itself and hands it over with the KV, so the time to it has three parts: the
queue, the prefill, and the hand-off. The first step of the decode worker makes the second token.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstTokenPhases:
    """Seconds; together the time to the first token."""

    queue: float  # from the request's arrival to the step that its prefill begins in: gateway, and worker
    prefill: float
    handoff: float | None  # from the prefill's end to the first token elsewhere; None: it stayed where it was computed


class RequestTiming:
    """Follows one request until its first token is reported. Attempts without a token are queue time."""

    __slots__ = ("_attempt", "_begun", "_handoff", "_remote", "_reported", "arrived", "first_token", "paused")

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.first_token: float | None = None
        self.paused = 0.0  # seconds for which its client read too slowly
        self._attempt = 0
        self._begun: float | None = None
        self._remote = False
        self._handoff: float | None = None
        self._reported = False

    def placed(self, attempt: int, remote: bool) -> None:
        """That attempt was sent to workers; `remote`: its prefill to another one than its decoding."""
        if self.first_token is None:
            self._attempt, self._begun, self._remote, self._handoff = attempt, None, remote, None

    def began(self, attempt: int, now: float) -> None:
        """A worker has that attempt in a step. The decode worker may say so, too, after its first token."""
        if attempt == self._attempt and self._begun is None:
            self._begun = now

    def handed_off(self, attempt: int, seconds: float) -> None:
        """It stood still for so long between two workers."""
        if attempt == self._attempt:
            self._handoff = seconds

    def phases(self) -> FirstTokenPhases | None:
        """Once, as soon as they are known: the report of a hand-off may follow the token."""
        if self._reported or self.first_token is None or self._begun is None:
            return None
        if self._remote and self._handoff is None:
            return None
        self._reported = True
        computed = self.first_token - self._begun
        handoff = min(self._handoff or 0.0, computed)
        return FirstTokenPhases(self._begun - self.arrived, computed - handoff, handoff if self._remote else None)
