"""Adapters and lengths of sequences that clients can request now."""

from legato_gateway.routing.filters import LONGEST
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_gateway.workers.fleet import Fleet
from legato_protocol.model_files.adapter_file import AdapterFile


class ServedAdapters:
    """Adapters `named` by flags are always served. Listed ones are served once workers have them.

    Both prefill and decode workers must have an adapter, if there are workers of that kind.
    """

    def __init__(self, fleet: Fleet, named: tuple[str, ...], file: AdapterFile | None, served_name: str) -> None:
        """The name `served_name` is the model's own, and is never an adapter's."""
        self._fleet = fleet
        self._named = named
        self._file = file
        self._served_name = served_name

    def names(self) -> tuple[str, ...]:
        """Returns the names in the order of the list."""
        if self._file is None:
            return self._named
        snapshot = self._fleet.snapshot()
        listed = [name for name in self._file.value.names if name != self._served_name]
        return tuple([name for name in listed if _is_there(name, snapshot)])


def _is_there(name: str, snapshot: FleetSnapshot) -> bool:
    for prefills in (True, False):
        workers = [worker for worker in snapshot.workers if worker.prefills is prefills and worker.ready]
        if workers and not any(name in worker.adapters for worker in workers):
            return False
    return True


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
