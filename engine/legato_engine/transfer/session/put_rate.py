"""The measured rate of puts, by which gateways predict how long a fetch of cached blocks takes. Pure."""

_MEMORY = 10.0  # seconds after which the weight of a put is halved
_STALE = 60.0  # seconds after which the rate is forgotten, so that a low one does not prevent fetches forever


class PutRate:
    """Blocks per second of a put, from its start to the report that all bytes are in the peer's memory."""

    def __init__(self) -> None:
        self._blocks = 0.0
        self._seconds = 0.0
        self._measured_at: float | None = None

    def measure(self, blocks: int, seconds: float, now: float) -> None:
        """Counts a put of `blocks` that took `seconds` and ended `now`."""
        before = now if self._measured_at is None else self._measured_at
        weight = 0.5 ** ((now - before) / _MEMORY)
        self._blocks = self._blocks * weight + blocks
        self._seconds = self._seconds * weight + seconds
        self._measured_at = now

    def per_second(self, now: float) -> float:
        """The rate, or 0 if nothing was put in the last minute."""
        recent = self._measured_at is not None and now - self._measured_at < _STALE
        return self._blocks / self._seconds if recent and self._seconds > 0 else 0.0
