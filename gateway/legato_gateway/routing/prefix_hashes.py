"""Block hashes of a prompt, for lookups in the KV index."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from legato_protocol.wire import block_hash

PIECE = 1024  # blocks hashed without a pause: about a millisecond


class Hashing(NamedTuple):
    """A way in which workers hash a request's blocks. `adapter` is a digest."""

    kv_revision: str
    block_size: int
    adapter: str = ""


@dataclass(slots=True)
class _Chain:
    """The hashes of the prompt's first blocks. `root` is the parent of the first."""

    root: bytes
    hashes: list[bytes] = field(default_factory=list)

    @property
    def last(self) -> bytes:
        return self.hashes[-1] if self.hashes else self.root


class PrefixHashes:
    """Block hashes of one request's prompt, computed once per KV revision, block size and adapter digest."""

    def __init__(self, prompt: bytes, cache_salt: str) -> None:
        self._prompt = prompt
        self._salt = cache_salt
        self._chains: dict[Hashing, _Chain] = {}

    def pieces(self, hashing: Hashing) -> Iterator[list[bytes]]:
        """Computes the missing hashes, `PIECE` blocks at a time. Yields all known ones after each piece."""
        chain = self._chain(hashing)
        size = hashing.block_size * block_hash.TOKEN_BYTES
        while (rest := len(self._prompt) // size - len(chain.hashes)) > 0:
            start = len(chain.hashes) * size
            piece = self._prompt[start : start + min(rest, PIECE) * size]
            chain.hashes += block_hash.chain(piece, hashing.block_size, chain.last)
            yield chain.hashes

    def chain(self, tokens: bytes, hashing: Hashing) -> list[bytes]:
        """Returns the hashes of all full blocks of `tokens`, which start with the prompt."""
        for _ in self.pieces(hashing):
            pass
        chain = self._chain(hashing)
        if len(tokens) == len(self._prompt):
            return chain.hashes
        return chain.hashes + block_hash.chain(tokens, hashing.block_size, chain.last, len(chain.hashes))

    def _chain(self, hashing: Hashing) -> _Chain:
        known = self._chains.get(hashing)
        if known is None:
            root = block_hash.root(hashing.kv_revision, hashing.adapter, self._salt)
            known = self._chains[hashing] = _Chain(root)
        return known
