"""Block hashes of a prompt, to ask the KV index with."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from legato_protocol import block_hash

PIECE = 1024  # blocks that are hashed without a pause: about a millisecond


@dataclass(slots=True)
class _Chain:
    """The hashes of the prompt's first blocks. `root` is the parent of the first one."""

    root: bytes
    hashes: list[bytes] = field(default_factory=list)

    @property
    def last(self) -> bytes:
        return self.hashes[-1] if self.hashes else self.root


class PrefixHashes:
    """Block hashes of one request's prompt, computed once per KV revision and block size."""

    def __init__(self, prompt: bytes, cache_salt: str) -> None:
        self._prompt = prompt
        self._salt = cache_salt
        self._chains: dict[tuple[str, int], _Chain] = {}

    def pieces(self, kv_revision: str, block_size: int) -> Iterator[list[bytes]]:
        """Computes what is missing, `PIECE` blocks at a time: yields all that are known after each."""
        chain = self._chain(kv_revision, block_size)
        size = block_size * block_hash.TOKEN_BYTES
        while (rest := len(self._prompt) // size - len(chain.hashes)) > 0:
            start = len(chain.hashes) * size
            piece = self._prompt[start : start + min(rest, PIECE) * size]
            chain.hashes += block_hash.chain(piece, block_size, chain.last)
            yield chain.hashes

    def of(self, tokens: bytes, kv_revision: str, block_size: int) -> list[bytes]:
        """Hashes of all full blocks of `tokens`, which begin with the prompt."""
        for _ in self.pieces(kv_revision, block_size):
            pass
        chain = self._chain(kv_revision, block_size)
        if len(tokens) == len(self._prompt):
            return chain.hashes
        return chain.hashes + block_hash.chain(tokens, block_size, chain.last, len(chain.hashes))

    def _chain(self, kv_revision: str, block_size: int) -> _Chain:
        known = self._chains.get((kv_revision, block_size))
        if known is None:
            root = block_hash.root(kv_revision, "", self._salt)
            known = self._chains[(kv_revision, block_size)] = _Chain(root)
        return known
