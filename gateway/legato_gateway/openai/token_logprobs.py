"""The JSON of a token and its log probabilities, in chats and in responses."""

from collections.abc import Callable
from typing import Any

from legato_gateway.openai.sse import finite
from legato_gateway.request import TokenText


def text(id: int, raw: bytes) -> str:
    """Returns a token's name: its bytes as text, with replacement characters where they are not UTF-8."""
    return raw.decode(errors="replace")


def logprob_fields(
    token: TokenText, token_bytes: Callable[[int], bytes], name: Callable[[int, bytes], str] = text
) -> dict[str, Any]:
    """Returns a token with its log probabilities. `token_bytes` and `name` map a token id to its bytes and its name."""
    assert token.logprobs is not None
    top = [_entry(name(best.token, raw := token_bytes(best.token)), raw, best.logprob) for best in token.logprobs.top]
    return {**_entry(name(token.token, token.raw), token.raw, token.logprobs.logprob), "top_logprobs": top}


def _entry(name: str, raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": name, "logprob": finite(logprob), "bytes": list(raw)}
