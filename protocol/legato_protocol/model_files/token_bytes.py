"""The bytes of a vocabulary's tokens, for the gateway (text) and the engine (grammars)."""

import re
from functools import lru_cache

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level(token: str) -> bytes:
    """Decodes GPT-2's alphabet, one printable character for each byte; other tokens are encoded as UTF-8."""
    alphabet = _alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


def sentence_piece(token: str) -> bytes:
    """Decodes a SentencePiece token: ▁ is a space, <0xAB> a byte. A leading space stays, since output continues a
    prompt."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """Returns the byte of each character: printable Latin-1 stands for itself, other bytes follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
