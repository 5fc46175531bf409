"""vLLM's `truncate_prompt_tokens`: keeps only the last tokens of a prompt."""

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import SamplingBody


def kept(body: SamplingBody, context: int, answer: int) -> int | None:
    """Returns the number of tokens to keep of each prompt, or None for all. Raises BadRequest if they leave no room.

    -1 keeps as many as leave room in the context for `answer` tokens.
    """
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
