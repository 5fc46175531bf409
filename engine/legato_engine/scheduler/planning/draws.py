"""Draws of requests."""

from collections.abc import Sequence

from legato_engine.scheduler.batch import Draw
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.requests.token_counts import DraftedCounts


def draw(request: Request, choice: int, position: int) -> Draw:
    """A draw of the token at `position` for one choice."""
    params, tokens, prompt_len = request.params, request.tokens, request.prompt_len
    return Draw(choice, position, params, tokens, prompt_len, request.grammar, request.counts)


def draw_after(request: Request, drafts: Sequence[int]) -> Draw:
    """A draw of the token that follows the known tokens of a request with one choice, and `drafts`."""
    position = len(request.tokens) + len(drafts)
    if not drafts or not reads_tokens(request):
        return draw(request, request.choice, position)
    tokens, counts = [*request.tokens, *drafts], DraftedCounts(request.counts)
    return Draw(request.choice, position, request.params, tokens, request.prompt_len, request.grammar, counts)


def reads_tokens(request: Request) -> bool:
    """True if sampling the next token reads those before it."""
    params = request.params
    penalized = params.repetition_penalty != 1 or params.frequency_penalty or params.presence_penalty
    masked = params.bad_words or len(request.tokens) - request.prompt_len < params.min_tokens
    return bool(penalized or masked) or request.grammar is not None
