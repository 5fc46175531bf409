"""Logprobs of prompts as answers spell them: vLLM's `prompt_logprobs`, and OpenAI's `echo` together with `logprobs`."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import CompletionBody, SamplingBody
from legato_gateway.openai.sse import finite
from legato_gateway.prompt_scores import PromptScores
from legato_protocol.packed_logprobs import PromptToken

TokenBytes = Callable[[int], bytes]
MAX_TOLD = 1 << 19  # log probabilities of prompts in one answer: some 400 bytes each, while it is spelled


def asked(body: SamplingBody) -> int | None:
    """How many alternatives workers have to tell. Raises BadRequest, as vLLM does for streams."""
    if body.prompt_logprobs is not None and body.stream:
        raise BadRequest("prompt_logprobs is not available with stream: true", param="prompt_logprobs")
    echoed = body.logprobs if isinstance(body, CompletionBody) and body.echo else None
    return max((count for count in (body.prompt_logprobs, echoed) if count is not None), default=None)


def check_size(body: SamplingBody, alternatives: int | None, tokens: int) -> None:
    """Raises BadRequest where an answer would be too large. `tokens` of prompts count as often as they are told."""
    if alternatives is None or (told := tokens * (1 + alternatives)) <= MAX_TOLD:
        return
    field = "prompt_logprobs" if body.prompt_logprobs is not None else "echo"
    text = f"{field} asks for {told} log probabilities of prompts in one answer; at most {MAX_TOLD} are told"
    raise BadRequest(text, param=field)


def listed(scores: PromptScores, alternatives: int, token_bytes: TokenBytes) -> list[dict[int, Any] | None]:
    """One for each token of the prompt, by token id: itself and the likeliest. The first has none."""

    def of(own: int, found: PromptToken) -> dict[int, Any]:
        told = [(own, found.logprob, found.rank)]
        told += [(id, logprob, rank) for rank, (id, logprob) in enumerate(found.top[:alternatives], 1) if id != own]
        return {
            id: {"logprob": finite(logprob), "rank": rank, "decoded_token": _text(token_bytes, id)}
            for id, logprob, rank in told
        }

    return [None, *(of(own, found) for own, found in zip(scores.prompt[1:], scores, strict=True))]


def echoed(
    scores: PromptScores, alternatives: int, token_bytes: TokenBytes, echo: str, names: TokenBytes
) -> dict[str, list[Any]]:
    """The prompt's part of a completion's logprobs. `echo` is its text, where tokens begin at `text_offset`. They are
    told by their `names`, as a rule their bytes."""
    prompt = scores.prompt
    found = [None, *scores]
    return {
        "text_offset": _offsets(prompt, token_bytes, echo),
        "token_logprobs": [finite(one.logprob) if one else None for one in found],
        "tokens": [_text(names, id) for id in prompt],
        "top_logprobs": [
            likeliest(one.top[:alternatives], id, one.logprob, names) if one else None
            for id, one in zip(prompt, found, strict=True)
        ],
    }


def likeliest(
    top: tuple[tuple[int, float], ...], own: int, logprob: float, token_bytes: TokenBytes
) -> dict[str, float]:
    """Logprobs by text. Where several tokens have one text, as parts of a character do, it is the likeliest one's:
    evaluations compare the largest with the token's own."""
    found: dict[str, float] = {}
    for id, value in (*top, (own, logprob)):
        text = _text(token_bytes, id)
        found[text] = max(found.get(text, finite(value)), finite(value))
    return found


def _offsets(prompt: Sequence[int], token_bytes: TokenBytes, echo: str) -> list[int]:
    """Where in `echo` each token begins: within a character of several, where that begins. What a tokenizer puts before
    a text is not in it."""
    decoder = getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(token_bytes(id)) for id in prompt]
    places = list(accumulate(map(len, texts), initial=0))
    whole = "".join(texts) + decoder.decode(b"", final=True)
    before = len(whole) - len(echo) if whole.endswith(echo) else 0
    return [max(0, place - before) for place in places[:-1]]


def _text(token_bytes: TokenBytes, id: int) -> str:
    return token_bytes(id).decode(errors="replace")
