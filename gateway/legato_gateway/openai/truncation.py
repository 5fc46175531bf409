"""`truncate_prompt_tokens`, vLLM's: only the last tokens of a prompt are kept."""

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import SamplingBody


def kept(body: SamplingBody, context: int, answer: int) -> int | None:
    """How many tokens of each prompt are kept; None: all. With -1, as many as leave room in the context for `answer`
    tokens. Raises BadRequest for more than these."""
    given = body.truncate_prompt_tokens
    if given is None:
        return None
    room = max(1, context - answer)
    if given == 0 or given > room:
        raise BadRequest(
            f"not a valid truncate_prompt_tokens: {given} (-1, or 1 to {room}: the context has {context} tokens, "
            f"{answer} of them for the answer)",
            param="truncate_prompt_tokens",
        )
    return room if given == -1 else given
