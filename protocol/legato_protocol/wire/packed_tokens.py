"""Token ids as bytes, for frames and block hashes."""

import sys
from array import array
from collections.abc import Sequence


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Packs token ids as little-endian int32."""
    packed = array("i", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """Returns the token ids in bytes made by `pack_tokens`."""
    tokens = array("i")
    tokens.frombytes(packed)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()
