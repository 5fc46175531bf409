"""Content hashes of KV blocks, the same in every process.

A block's hash chains over its parent's, so equal hashes mean equal *prefixes*, not just equal blocks. The gateway
hashes prompts with these functions to find workers that hold a prefix; workers hash computed blocks. SHA-256 cut to
128 bits: a hash that can be forged would let a crafted prompt reach another tenant's blocks, and Python's own
`hash()` differs from process to process.
"""

from hashlib import sha256

HASH_BYTES = 16
TOKEN_BYTES = 4
_VERSION = b"legato-block-1"


def root(kv_revision: str, adapter: str = "", cache_salt: str = "") -> bytes:
    """Returns the parent of every first block: 16 bytes that differ by KV revision, adapter and the tenant's cache
    salt."""
    digest = sha256(_VERSION)
    for part in (kv_revision, adapter, cache_salt):
        raw = part.encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)  # lengths, so that no two triples give the same bytes
    return digest.digest()[:HASH_BYTES]


def child(parent: bytes, tokens: bytes) -> bytes:
    """Returns the hash of one full block; `tokens` holds its block_size little-endian int32 token ids."""
    return sha256(parent + tokens).digest()[:HASH_BYTES]


def chain(tokens: bytes, block_size: int, parent: bytes, first_block: int = 0) -> list[bytes]:
    """Returns the hashes of all full blocks of a sequence, first to last.

    `tokens` is the whole sequence as little-endian int32 ids (see `packed_tokens`); a last, partial block has no
    hash. With `first_block`, hashing starts at that block and `parent` is the hash of the one before it.
    """
    size = block_size * TOKEN_BYTES
    hashes = []
    for start in range(first_block * size, len(tokens) - size + 1, size):
        parent = sha256(parent + tokens[start : start + size]).digest()[:HASH_BYTES]
        hashes.append(parent)
    return hashes


def join(hashes: list[bytes]) -> bytes:
    """Joins hashes into one byte string, as KV events carry them."""
    return b"".join(hashes)


def split(joined: bytes) -> list[bytes]:
    """Splits a byte string made by `join`. Raises ValueError if it ends with a part of a hash."""
    if len(joined) % HASH_BYTES:
        raise ValueError(f"{len(joined)} bytes are not a whole number of {HASH_BYTES}-byte block hashes")
    return [joined[i : i + HASH_BYTES] for i in range(0, len(joined), HASH_BYTES)]
