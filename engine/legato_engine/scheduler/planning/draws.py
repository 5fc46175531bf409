"""Draws of requests."""

from collections.abc import Sequence

from legato_engine.scheduler.batch import Constraint, Draw
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.requests.token_counts import DraftedCounts
from legato_protocol.sampling.parameters import SamplingParams


def draw(request: Request, choice: int, position: int) -> Draw:
    """A draw of the token at `position` for one choice."""
    params, tokens, prompt_len = request.params, request.tokens, request.prompt_len
    return Draw(choice, position, params, tokens, prompt_len, request.grammar, request.counts)


def draw_next(request: Request) -> Draw:
    """A draw of the token that follows the known tokens of a request with one choice."""
    return draw(request, request.choice, len(request.tokens))


def draw_after(first: Draw, drafts: Sequence[int]) -> Draw:
    """A draw of the token that follows `drafts`, of which `first` would draw the first one."""
    position = first.position + len(drafts)
    params, prompt_len, grammar = first.params, first.prompt_len, first.constraint
    if not drafts or not _reads(params, first.position - prompt_len, grammar):
        return Draw(first.choice, position, params, first.tokens, prompt_len, grammar, first.counts)
    counts = DraftedCounts(first.counts)
    return Draw(first.choice, position, params, [*first.tokens, *drafts], prompt_len, grammar, counts)


def reads_tokens(request: Request) -> bool:
    """True if sampling the next token reads those before it."""
    return _reads(request.params, len(request.tokens) - request.prompt_len, request.grammar)


def _reads(params: SamplingParams, outputs: int, grammar: Constraint | None) -> bool:
    penalized = params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
    masked = params.bad_words or outputs < params.min_tokens
    return bool(penalized or masked) or grammar is not None
