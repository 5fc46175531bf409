"""Messages at a worker's door: a visitor proves that it knows the service's token, and so does the answer.

Both proofs are bound to the worker whose arena is asked for and to the visitor's nonce. Neither is a secret.
"""

import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

_NONCE, _PROOF = 16, 32
_SIZES = struct.Struct("<QQ")
LONGEST = 4096  # bytes of a message


@dataclass(frozen=True, slots=True)
class ArenaOwner:
    """The worker whose arena is read, and its epoch."""

    worker: str
    epoch: str

    @property
    def door(self) -> str:
        """The name of the socket at which others ask for its arena."""
        return f"legato-{sha256(self._name).hexdigest()[:16]}"

    @property
    def _name(self) -> bytes:
        return f"{len(self.worker)}:{self.worker}:{self.epoch}".encode()

    def prove(self, token: str, what: bytes, content: bytes) -> bytes:
        return hmac.digest(token.encode(), what + len(self._name).to_bytes(4, "little") + self._name + content, sha256)


@dataclass(frozen=True, slots=True)
class ArenaOffer:
    """The arena that a visitor may map: its size, and for device memory the driver's handle."""

    num_blocks: int
    block_bytes: int
    handle: bytes = b""


def ask(owner: ArenaOwner, token: str, nonce: bytes) -> bytes:
    """Encodes a visitor's request. `nonce` has 16 random bytes."""
    return nonce + owner.prove(token, b"ask", nonce)


def answer(owner: ArenaOwner, tokens: Iterable[str], asked: bytes, offer: ArenaOffer) -> bytes | None:
    """Encodes the answer; None if the request's proof is wrong."""
    nonce, proof = asked[:_NONCE], asked[_NONCE:]
    for token in tokens:
        if hmac.compare_digest(proof, owner.prove(token, b"ask", nonce)):
            content = _SIZES.pack(offer.num_blocks, offer.block_bytes) + offer.handle
            return owner.prove(token, b"answer", nonce + content) + content
    return None


def read_answer(owner: ArenaOwner, token: str, nonce: bytes, answer: bytes) -> ArenaOffer:
    """Raises ValueError if the answer is not from that worker."""
    proof, content = answer[:_PROOF], answer[_PROOF:]
    if len(content) < _SIZES.size or not hmac.compare_digest(proof, owner.prove(token, b"answer", nonce + content)):
        raise ValueError("another process answered for it")
    num_blocks, block_bytes = _SIZES.unpack_from(content)
    return ArenaOffer(num_blocks, block_bytes, content[_SIZES.size :])
