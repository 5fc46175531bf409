"""What shows that a message comes from someone who knows the service's token, undamaged: a keyed digest before it.

It hides nothing; see `tls_channel`.
"""

import hmac
from dataclasses import dataclass
from hashlib import blake2b, sha256

_SEAL_BYTES = 8


@dataclass(frozen=True, slots=True)
class Token:
    """One of the service's."""

    text: str
    key: bytes  # of seals

    @classmethod
    def of(cls, text: str) -> "Token":
        return cls(text, sha256(text.encode()).digest())


def prove(token: str, worker: str, epoch: str) -> bytes:
    """What `PeerHello.proof` holds: only who knows the token can make it."""
    return hmac.digest(token.encode(), f"{len(worker)}:{worker}:{epoch}".encode(), sha256)


def sealed(data: bytes, token: Token) -> bytes:
    return _digest(data, token) + data


def unsealed(data: bytes, token: Token) -> bytes | None:
    """What is in a sealed message; None where the seal does not fit."""
    seal, rest = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
    return rest if hmac.compare_digest(seal, _digest(rest, token)) else None


def _digest(data: bytes, token: Token) -> bytes:
    return blake2b(data, digest_size=_SEAL_BYTES, key=token.key).digest()
