"""Tokens in the last message of a hand-off that the receiver does not have yet. Pure."""

from collections.abc import Sequence

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.requests.request import Request
from legato_protocol.wire.handoff import Final
from legato_protocol.wire.packed_tokens import unpack_tokens
from legato_protocol.wire.stream import TokenItem, TokenLogprobs


def sampled_after(request: Request, final: Final) -> dict[int, list[Sampled]]:
    """The tokens of each choice that follow `request.tokens`. Raises ValueError if the two sequences disagree.

    `final.token_ids` start with the request's tokens. `final.tokens` follow them, and may repeat the last of them with
    their logprobs.
    """
    known = unpack_tokens(final.token_ids)
    if known[: len(request.tokens)] != request.tokens:
        raise ValueError("the tokens handed over differ from the request's")
    common = [Sampled(token) for token in known[len(request.tokens) :]]
    if common and len(request.choices) > 1:
        raise ValueError("several choices share output")
    items: dict[int, list[TokenItem]] = {}
    for item in final.tokens:
        items.setdefault(item.choice, []).append(item)
    if not set(items) <= set(request.choices):
        raise ValueError("tokens of a choice that was not asked for")
    return {choice: _choice_tokens(request.outputs, common, items.get(choice, ())) for choice in request.choices}


def cached_tokens(final: Final) -> int:
    """Prompt tokens that the sender took from its cache."""
    return max((item.cached_tokens for item in final.tokens), default=0)


def _choice_tokens(first: int, common: list[Sampled], items: Sequence[TokenItem]) -> list[Sampled]:
    """The tokens of one choice from output index `first` on."""
    sampled = list(common)
    for item in items:
        logprobs: list[TokenLogprobs | None] = [*item.logprobs] or [None] * len(item.token_ids)
        if len(logprobs) != len(item.token_ids):
            raise ValueError("not one logprob for each token")
        for offset, (token, logprob) in enumerate(zip(item.token_ids, logprobs, strict=True)):
            place = item.index + offset - first
            if place < 0:
                continue
            if place > len(sampled):
                raise ValueError(f"output {item.index + offset} follows on output {first + len(sampled)}")
            if place == len(sampled):
                sampled.append(Sampled(token, logprob))
            elif sampled[place].token != token:
                raise ValueError(f"two tokens for output {item.index + offset}")
            else:
                sampled[place] = Sampled(token, logprob)
    return sampled
