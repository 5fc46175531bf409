"""How a token and its log probabilities are spelled, in chats and in responses."""

from collections.abc import Callable
from typing import Any

from legato_gateway.openai.sse import finite
from legato_gateway.request import TokenText


def logprob_fields(token: TokenText, token_bytes: Callable[[int], bytes]) -> dict[str, Any]:
    """A token that has log probabilities. `token_bytes` are those of a token's id."""
    assert token.logprobs is not None
    top = [_spelled(token_bytes(best.token), best.logprob) for best in token.logprobs.top]
    return {**_spelled(token.raw, token.logprobs.logprob), "top_logprobs": top}


def _spelled(raw: bytes, logprob: float) -> dict[str, Any]:
    return {"token": raw.decode(errors="replace"), "logprob": finite(logprob), "bytes": list(raw)}
