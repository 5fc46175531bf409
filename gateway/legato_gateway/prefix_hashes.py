"""Block hashes of a prompt, to ask the KV index with."""

from legato_protocol import block_hash


class PrefixHashes:
    """Block hashes of one request's prompt, computed once per KV revision and block size."""

    def __init__(self, prompt: bytes, cache_salt: str) -> None:
        self._prompt = prompt
        self._salt = cache_salt
        self._known: dict[tuple[str, int], list[bytes]] = {}

    def of(self, tokens: bytes, kv_revision: str, block_size: int) -> list[bytes]:
        """Hashes of all full blocks of `tokens`, which begin with the prompt."""
        root = block_hash.root(kv_revision, "", self._salt)
        known = self._known.get((kv_revision, block_size))
        if known is None:
            known = self._known[(kv_revision, block_size)] = block_hash.chain(self._prompt, block_size, root)
        if len(tokens) == len(self._prompt):
            return known
        return known + block_hash.chain(tokens, block_size, known[-1] if known else root, len(known))
