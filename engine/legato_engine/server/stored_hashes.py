"""The server's copy of the hashes in a tier of the core's KV, so that it can send snapshots without the core."""

from collections.abc import Iterator

from legato_protocol.wire import block_hash, stream
from legato_protocol.wire.kv_events import ARENA, KVEvent, Removed, Snapshot, Stored

PAGE_HASHES = 1 << 15


class StoredHashes:
    """All hashes after event `number` of `epoch`, parents before children."""

    def __init__(self, epoch: str, tier: int = ARENA) -> None:
        self.epoch = epoch
        self.tier = tier
        self.number = 0
        self._hashes: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def apply(self, event: KVEvent) -> None:
        """Applies the next event. Raises ValueError for another one, which would make the copy wrong."""
        if event.epoch != self.epoch or event.number != self.number + 1:
            raise ValueError(f"event {event.number} of {event.epoch} after {self.number} of {self.epoch}")
        self.number = event.number
        match event:
            case Stored():
                self._hashes.update(dict.fromkeys(block_hash.split(event.hashes)))
            case Removed():
                for removed in block_hash.split(event.hashes):
                    self._hashes.pop(removed, None)

    def snapshot(self) -> list[bytes]:
        """Encoded pages; one empty page if the cache is empty."""
        pages = list(self._pages()) or [b""]
        last = len(pages) - 1
        return [
            stream.encode(Snapshot(self.epoch, self.number, page, page == last, hashes, self.tier))
            for page, hashes in enumerate(pages)
        ]

    def _pages(self) -> Iterator[bytes]:
        hashes = list(self._hashes)
        for start in range(0, len(hashes), PAGE_HASHES):
            yield block_hash.join(hashes[start : start + PAGE_HASHES])
