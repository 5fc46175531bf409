"""The longest sequence that clients can ask for now: the service's setting, or with Auto what its workers report."""

from legato_gateway.routing.filters import LONGEST
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.workers.fleet import Fleet


class ServedLength:
    """`given` is the setting, and `declared` the model's own limit. Without a setting, workers choose by the memory
    that they have, and the shortest limit counts: such a request can go to any of them."""

    def __init__(self, fleet: Fleet, given: int | None, declared: int | None) -> None:
        self._fleet = fleet
        self._given = given
        self._last = declared or LONGEST  # until a worker is known; later what the last ones reported
        self._seen: FleetSnapshot | None = None  # that `_last` is of

    def tokens(self) -> int:
        """Tokens of the longest sequence, prompt and answer."""
        if self._given is not None:
            return self._given
        if (snapshot := self._fleet.snapshot()) is not self._seen:
            lengths = [worker.max_length for worker in snapshot.workers if not worker.draining]
            self._last, self._seen = min(lengths, default=self._last), snapshot
        return self._last
