"""The measured rate of puts, by which gateways predict how long a fetch of cached blocks takes. Pure."""

_MEMORY = 10.0  # seconds after which the weight of a put is halved
_STALE = 20.0  # seconds after which the rate is forgotten, so that a low one does not prevent fetches for long


class PutRate:
    """Blocks per second of a usual put, from its start to the report that all bytes are in the peer's memory.

    The mean of the rates of puts, weighted by their blocks. In all blocks divided by all seconds, one interrupted put
    would outweigh the others, and its low rate would prevent the fetches that measure later rates.
    """

    def __init__(self) -> None:
        self._blocks = 0.0
        self._rates = 0.0  # sum of rates, each times its blocks
        self._measured_at: float | None = None

    def measure(self, blocks: int, seconds: float, now: float) -> None:
        """Counts a put of `blocks` that took `seconds` and ended `now`."""
        if seconds <= 0:
            return
        before = now if self._measured_at is None else self._measured_at
        weight = 0.5 ** ((now - before) / _MEMORY)
        self._blocks = self._blocks * weight + blocks
        self._rates = self._rates * weight + blocks * blocks / seconds
        self._measured_at = now

    def per_second(self, now: float) -> float:
        """The rate, or 0 if nothing was put lately."""
        recent = self._measured_at is not None and now - self._measured_at < _STALE
        return self._rates / self._blocks if recent and self._blocks else 0.0
