"""The longest sequence that clients can request: the service's setting or, with Auto, the limit that workers report."""

from legato_gateway.routing.filters import LONGEST
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.workers.fleet import Fleet


class ServedLength:
    """The length limit of the service: `given` is the setting, `declared` the model's own limit.

    Without a setting, workers choose by their memory, and the shortest limit applies, so that a request can go to any
    of them."""

    def __init__(self, fleet: Fleet, given: int | None, declared: int | None) -> None:
        self._fleet = fleet
        self._given = given
        self._last = declared or LONGEST  # until a worker is known; then the last reported limit
        self._seen: FleetSnapshot | None = None  # the snapshot that `_last` was read from

    def tokens(self) -> int:
        """Tokens of the longest sequence, prompt and answer."""
        if self._given is not None:
            return self._given
        if (snapshot := self._fleet.snapshot()) is not self._seen:
            lengths = [worker.max_length for worker in snapshot.workers if not worker.draining]
            self._last, self._seen = min(lengths, default=self._last), snapshot
        return self._last
