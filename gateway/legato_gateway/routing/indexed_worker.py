"""A worker's state in the KV index: the last event, and the snapshot that is being read. Pure."""

from dataclasses import dataclass

from legato_protocol.wire.block_hash import HASH_BYTES, split
from legato_protocol.wire.kv_events import Snapshot

PIECE = 1024  # hashes of a snapshot added without a pause: half a millisecond


@dataclass(slots=True)
class IndexedWorker:
    """A worker, as one bit. A snapshot's pages count when all of them were read."""

    name: str
    bit: int
    epoch: str
    number: int = -1  # of the last event seen, applied or not
    whole: bool = True  # it announces all blocks of a prefix
    blocks: int = 0  # hashes with its bit
    pages: int = 0  # of the snapshot being read
    page_number: int = -1
    last_page: bool = False
    page: bytes = b""  # hashes of the page that is being added
    position: int = 0  # offset of the first hash that is left in it

    def begin(self, page: Snapshot) -> None:
        """Takes a page, whose hashes `next_hashes` returns."""
        self.pages = page.page + 1
        self.page_number = self.number = page.number
        self.page, self.position, self.last_page = page.hashes, 0, page.last

    def next_hashes(self) -> list[bytes]:
        """Returns the next hashes of the page; with the last ones, the page is removed."""
        start, self.position = self.position, self.position + PIECE * HASH_BYTES
        hashes = split(self.page[start : self.position])
        if self.position >= len(self.page):
            self.page = b""
        return hashes
