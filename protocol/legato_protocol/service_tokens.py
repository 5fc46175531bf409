"""The tokens of a service: the keys of its Secret, which texts are tokens, and how one is named without telling it."""

import hashlib

TOKEN, NEXT, PREVIOUS = "token", "next", "previous"  # keys of the Secret, and names of its files


def usable(token: str) -> bool:
    """Whether it can stand in a header: printable ASCII without spaces."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def token_id(token: str) -> str:
    """A name for a token, which tells nothing of a random one."""
    return hashlib.sha256(b"legato token " + token.encode()).hexdigest()[:12]
