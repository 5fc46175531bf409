"""Whether this worker and others wait for each other's places of adapters.

Requests of several gateways reach a prefill and a decode worker in different orders: at each, one half of a pair may
have the place that the other pair's half is held for. Every such ring has a held prefill in it, of which nothing is
computed.
"""

from legato_engine.scheduler.request import Request

_PATIENCE = 5.0  # seconds; less than a lease, which would end the hand-off with its link


class Stall:
    """How long the same sequences, all of which wait for other workers, have kept others from their adapters."""

    def __init__(self) -> None:
        self._who: frozenset[Request] = frozenset()
        self._since = 0.0

    def lasts(self, who: frozenset[Request], now: float) -> bool:
        """Whether it is time to give way to `who`, the same as for long. True once in that time."""
        if who != self._who:
            self._who, self._since = who, now
        if not who or now - self._since < _PATIENCE:
            return False
        self._since = now
        return True
