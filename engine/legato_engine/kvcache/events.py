"""The log of stored and removed blocks of the prefix cache, for gateways."""

from legato_protocol.wire.block_hash import join
from legato_protocol.wire.kv_events import ARENA, KVEvent, Removed, Stored

Change = type[Stored] | type[Removed]


class EventLog:
    """Changes in order; `take` returns them as messages, consecutive changes of one kind joined.

    Numbers are contiguous over the life of `epoch` and begin at 1: 0 is the empty cache of a new process. Each tier has
    a log of its own, see `legato_protocol.wire.kv_events`.
    """

    def __init__(self, epoch: str, tier: int = ARENA) -> None:
        self.epoch = epoch
        self.tier = tier
        self.number = 0  # of the last event taken
        self._runs: list[tuple[Change, list[bytes]]] = []

    def add_stored(self, block_hash: bytes) -> None:
        self._append(Stored, block_hash)

    def add_removed(self, block_hash: bytes) -> None:
        self._append(Removed, block_hash)

    def take(self) -> tuple[KVEvent, ...]:
        """Returns the events since the last call; every gateway has to get them in this order. Call once per step."""
        runs, self._runs = self._runs, []
        return tuple(self._event(change, hashes) for change, hashes in runs)

    def _append(self, change: Change, block_hash: bytes) -> None:
        if not self._runs or self._runs[-1][0] is not change:
            self._runs.append((change, []))
        self._runs[-1][1].append(block_hash)

    def _event(self, change: Change, hashes: list[bytes]) -> KVEvent:
        self.number += 1
        return change(epoch=self.epoch, number=self.number, hashes=join(hashes), tier=self.tier)
