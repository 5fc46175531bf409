"""What a token of a vocabulary file stands for, as bytes. Gateway (text) and engine (grammars) both read it so."""

import re
from functools import lru_cache

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level(token: str) -> bytes:
    """GPT-2's alphabet: one printable character for each byte. A token outside of it stands for itself."""
    alphabet = _alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


def sentence_piece(token: str) -> bytes:
    """▁ is a space, <0xAB> a byte. A leading space stays: what is generated continues a prompt."""
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()


@lru_cache(maxsize=1)
def _alphabet() -> dict[str, int]:
    """Printable bytes of Latin-1 are their own characters; the others follow from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
