"""Logprobs of prompts in answers: vLLM's `prompt_logprobs`, and OpenAI's `echo` together with `logprobs`."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import CompletionBody, SamplingBody
from legato_gateway.openai.sse import finite
from legato_gateway.request import PromptScores
from legato_protocol.wire.packed_logprobs import PromptToken

TokenBytes = Callable[[int], bytes]
MAX_LISTED = 1 << 19  # log probabilities of prompts in one answer: some 400 bytes each while it is written


def asked(body: SamplingBody) -> int | None:
    """Returns the number of alternatives that workers must send. Raises BadRequest for streams, as vLLM does."""
    if body.prompt_logprobs is not None and body.stream:
        raise BadRequest("prompt_logprobs is not available with stream: true", param="prompt_logprobs")
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    return max((count for count in (body.prompt_logprobs, echoed) if count is not None), default=None)


def check_size(body: SamplingBody, alternatives: int | None, tokens: int) -> None:
    """Raises BadRequest if an answer would be too large. `tokens` counts a prompt once per time that it is listed."""
    if alternatives is None or (count := tokens * (1 + alternatives)) <= MAX_LISTED:
        return
    field = "prompt_logprobs" if body.prompt_logprobs is not None else "echo"
    text = f"{field} asks for {count} log probabilities of prompts in one answer; at most {MAX_LISTED} are allowed"
    raise BadRequest(text, param=field)


def listed(scores: PromptScores, alternatives: int, token_bytes: TokenBytes) -> list[dict[int, Any] | None]:
    """Returns an entry per token of the prompt, by token id: itself and the likeliest. The first one's is None."""

    def entry(own: int, token: PromptToken) -> dict[int, Any]:
        rows = [(own, token.logprob, token.rank)]
        rows += [(id, logprob, rank) for rank, (id, logprob) in enumerate(token.top[:alternatives], 1) if id != own]
        return {
            id: {"logprob": finite(logprob), "rank": rank, "decoded_token": _text(token_bytes, id)}
            for id, logprob, rank in rows
        }

    return [None, *(entry(own, token) for own, token in zip(scores.prompt[1:], scores, strict=True))]


def echoed(
    scores: PromptScores, alternatives: int, token_bytes: TokenBytes, echo: str, names: TokenBytes
) -> dict[str, list[Any]]:
    """Returns the prompt's part of a completion's logprobs.

    `echo` is its text, in which tokens start at `text_offset`. `names` maps tokens to their names, usually their bytes.
    """
    prompt = scores.prompt
    tokens = [None, *scores]
    return {
        "text_offset": _offsets(prompt, token_bytes, echo),
        "token_logprobs": [finite(one.logprob) if one else None for one in tokens],
        "tokens": [_text(names, id) for id in prompt],
        "top_logprobs": [
            likeliest(one.top[:alternatives], id, one.logprob, names) if one else None
            for id, one in zip(prompt, tokens, strict=True)
        ],
    }


def likeliest(
    top: tuple[tuple[int, float], ...], own: int, logprob: float, token_bytes: TokenBytes
) -> dict[str, float]:
    """Returns logprobs by text. Among tokens of equal text, such as parts of a character, the likeliest one counts:
    evaluations compare the largest with the token's own."""
    logprobs: dict[str, float] = {}
    for id, value in (*top, (own, logprob)):
        text = _text(token_bytes, id)
        logprobs[text] = max(logprobs.get(text, finite(value)), finite(value))
    return logprobs


def _offsets(prompt: Sequence[int], token_bytes: TokenBytes, echo: str) -> list[int]:
    """Returns the offset in `echo` of each token, or of the character that it is a part of.

    `echo` does not contain tokens that a tokenizer adds before a text.
    """
    decoder = getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(token_bytes(id)) for id in prompt]
    places = list(accumulate(map(len, texts), initial=0))
    whole = "".join(texts) + decoder.decode(b"", final=True)
    before = len(whole) - len(echo) if whole.endswith(echo) else 0
    return [max(0, place - before) for place in places[:-1]]


def _text(token_bytes: TokenBytes, id: int) -> str:
    return token_bytes(id).decode(errors="replace")
