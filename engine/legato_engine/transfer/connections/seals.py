"""Seals of messages: a keyed digest proves that the sender knows the service's token and the message is undamaged.

Messages are not encrypted here; see `tls_channel`.
"""

import hmac
from dataclasses import dataclass
from hashlib import blake2b, sha256

_SEAL_BYTES = 8


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the service."""

    text: str
    key: bytes  # of seals

    @classmethod
    def from_text(cls, text: str) -> "Token":
        return cls(text, sha256(text.encode()).digest())


def prove(token: str, worker: str, epoch: str) -> bytes:
    """The value of `PeerHello.proof`, which requires the token."""
    return hmac.digest(token.encode(), f"{len(worker)}:{worker}:{epoch}".encode(), sha256)


def seal(data: bytes, token: Token) -> bytes:
    return _digest(data, token) + data


def unseal(data: bytes, token: Token) -> bytes | None:
    """Returns the content of a sealed message; None if the seal is wrong."""
    digest, rest = data[:_SEAL_BYTES], data[_SEAL_BYTES:]
    return rest if hmac.compare_digest(digest, _digest(rest, token)) else None


def _digest(data: bytes, token: Token) -> bytes:
    return blake2b(data, digest_size=_SEAL_BYTES, key=token.key).digest()
