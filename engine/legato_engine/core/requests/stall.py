"""Detects workers that wait for each other's adapter slots.

Requests of several gateways reach a prefill and a decode worker in different orders. At each worker, one pair's half
may then occupy the slot that the other pair's half waits for. Every such cycle has a pending prefill in it, of which
nothing is computed yet.
"""

from legato_engine.scheduler.requests.request import Request

_PATIENCE = 5.0  # seconds; less than a lease, whose end would abort the hand-off


class Stall:
    """The time for which the same sequences, all waiting for other workers, have kept others from their adapters."""

    def __init__(self) -> None:
        self._blockers: frozenset[Request] = frozenset()
        self._since = 0.0

    def lasts(self, blockers: frozenset[Request], now: float) -> bool:
        """True once every `_PATIENCE` seconds while `blockers` stay the same: it is time to give way to them."""
        if blockers != self._blockers:
            self._blockers, self._since = blockers, now
        if not blockers or now - self._since < _PATIENCE:
            return False
        self._since = now
        return True
