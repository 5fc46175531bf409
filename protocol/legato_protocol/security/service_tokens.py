"""Tokens of a service: keys of its Secret, valid texts, and ids that do not reveal a token."""

import hashlib

TOKEN, NEXT, PREVIOUS = "token", "next", "previous"  # keys of the Secret, and names of its files


def usable(token: str) -> bool:
    """True if a token can be sent in a header: printable ASCII without spaces."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def token_id(token: str) -> str:
    """Returns an id for a token, which reveals nothing about a random token."""
    return hashlib.sha256(b"legato token " + token.encode()).hexdigest()[:12]
