"""The server's own copy of what the core's prefix cache holds, so that a snapshot needs no answer from the core."""

from collections.abc import Iterator

from legato_protocol import block_hash, stream
from legato_protocol.kv_events import KVEvent, Removed, Snapshot, Stored

PAGE_HASHES = 1 << 15


class StoredHashes:
    """All hashes after event `number` of `epoch`, parents before children."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.number = 0
        self._hashes: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._hashes)

    def apply(self, event: KVEvent) -> None:
        """Raises ValueError for an event that is not the next one: the copy would be worth nothing."""
        if event.epoch != self.epoch or event.number != self.number + 1:
            raise ValueError(f"event {event.number} of {event.epoch} after {self.number} of {self.epoch}")
        self.number = event.number
        match event:
            case Stored():
                self._hashes.update(dict.fromkeys(block_hash.split(event.hashes)))
            case Removed():
                for gone in block_hash.split(event.hashes):
                    self._hashes.pop(gone, None)

    def snapshot(self) -> list[bytes]:
        """Encoded pages; one empty page where nothing is held."""
        pages = list(self._pages()) or [b""]
        last = len(pages) - 1
        return [
            stream.encode(Snapshot(self.epoch, self.number, page, page == last, hashes))
            for page, hashes in enumerate(pages)
        ]

    def _pages(self) -> Iterator[bytes]:
        hashes = list(self._hashes)
        for start in range(0, len(hashes), PAGE_HASHES):
            yield block_hash.join(hashes[start : start + PAGE_HASHES])
