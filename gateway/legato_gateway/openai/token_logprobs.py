"""How a token and its log probabilities are spelled, in chats and in responses."""

from collections.abc import Callable
from typing import Any

from legato_gateway.openai.sse import finite
from legato_gateway.request import TokenText


def text(id: int, raw: bytes) -> str:
    """A token's name: its text, as far as its bytes are one."""
    return raw.decode(errors="replace")


def logprob_fields(
    token: TokenText, token_bytes: Callable[[int], bytes], name: Callable[[int, bytes], str] = text
) -> dict[str, Any]:
    """A token that has log probabilities. `token_bytes` are those of a token's id, and `name` what it is called."""
    assert token.logprobs is not None
    top = [_spelled(name(best.token, raw := token_bytes(best.token)), raw, best.logprob) for best in token.logprobs.top]
    return {**_spelled(name(token.token, token.raw), token.raw, token.logprobs.logprob), "top_logprobs": top}


def _spelled(name: str, raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": name, "logprob": finite(logprob), "bytes": list(raw)}
