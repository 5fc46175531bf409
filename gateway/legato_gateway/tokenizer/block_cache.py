"""Token ids of the first blocks of recent texts, so that the next turn of a chat only tokenizes its new end.

A block matches only after the blocks before it and under the same salt, like blocks of the prefix cache, so response
times reveal only what `cached_tokens` shows anyway. Owner of its bytes; safe to use from several threads.
"""

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

LIMIT: Final = 16 << 20  # bytes in each process: some 4 million tokens
ENTRY: Final = 300  # bytes of an entry without its ids


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """The use of one cache: its bytes, and characters looked up since the start."""

    used: int = 0
    hits: int = 0
    misses: int = 0


class CacheUse:
    """The use of the caches of all processes."""

    def __init__(self) -> None:
        self._counts: dict[int, CacheCounts] = {}

    def update(self, process: int, counts: CacheCounts) -> None:
        """Takes the newest counts of a process."""
        self._counts[process] = counts

    @property
    def used(self) -> int:
        """Bytes."""
        return sum(counts.used for counts in self._counts.values())

    @property
    def hits(self) -> int:
        """Characters found."""
        return sum(counts.hits for counts in self._counts.values())

    @property
    def misses(self) -> int:
        """Characters not found."""
        return sum(counts.misses for counts in self._counts.values())


class CutText(NamedTuple):
    """A part of a text. `resumes`: it follows a cut, so it never joins the text before."""

    text: str
    resumes: bool = False


class BlockCache:
    """Ids by a digest of the salt and all blocks up to one; drops the least recently used."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._ids: dict[bytes, bytes] = {}
        self._used = self._hits = self._misses = 0
        self._lock = threading.Lock()

    @property
    def counts(self) -> CacheCounts:
        """Its use."""
        return CacheCounts(self._used, self._hits, self._misses)

    def keys(self, salt: str, blocks: Iterable[CutText]) -> list[bytes]:
        """Returns the key of each block of one text. Raises UnicodeEncodeError for invalid text."""
        key, keys = hashlib.sha256(salt.encode("utf-8", "surrogatepass")).digest(), []
        for block in blocks:
            key = hashlib.sha256(b"%b%d%b" % (key, block.resumes, block.text.encode())).digest()
            keys.append(key)
        return keys

    def get(self, keys: Iterable[bytes], blocks: Iterable[CutText]) -> list[bytes | None]:
        """Returns the packed ids of each block, or None."""
        with self._lock:
            taken = [self._ids.pop(key, None) for key in keys]
            self._ids |= {key: ids for key, ids in zip(keys, taken, strict=True) if ids is not None}
            for block, ids in zip(blocks, taken, strict=True):
                if ids is None:
                    self._misses += len(block.text)
                else:
                    self._hits += len(block.text)
        return taken

    def put(self, key: bytes, ids: bytes) -> None:
        """Adds a block's packed ids."""
        with self._lock:
            if key in self._ids or len(ids) + ENTRY > self._limit:
                return
            self._ids[key] = ids
            self._used += len(ids) + ENTRY
            while self._used > self._limit:
                self._used -= len(self._ids.pop(next(iter(self._ids)))) + ENTRY

    def check_integrity(self) -> None:
        """Raises AssertionError unless the bytes add up, and are within the limit."""
        assert self._used == sum(len(ids) + ENTRY for ids in self._ids.values()), "bytes are miscounted"
        assert self._used <= self._limit, "more than the limit is used"
