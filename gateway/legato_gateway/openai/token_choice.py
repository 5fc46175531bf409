"""vLLM's `allowed_token_ids` and `bad_words`: the tokens that an answer may contain."""

from collections.abc import Sequence

import msgspec

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import SamplingBody
from legato_gateway.serving.model_serving import ModelServing
from legato_protocol.sampling.limits import MAX_BAD_WORD_TOKENS
from legato_protocol.sampling.parameters import REASONING, SamplingParams

_SHOWN = 8  # tokens that an error shows
_ANY_LENGTH = 1 << 16  # tokens: no limit, as the schema bounds the text


def restricted(params: SamplingParams, body: SamplingBody, serving: ModelServing) -> SamplingParams:
    """Adds the allowed and forbidden tokens of `body`. Raises BadRequest if no answer is possible."""
    if body.allowed_token_ids is None and not body.bad_words:
        return params
    allowed = _allowed(body.allowed_token_ids or (), serving.tokens.vocab_size)
    words = dict.fromkeys(tokens for word in body.bad_words or () for tokens in _tokenized(serving, word))
    restricted = msgspec.structs.replace(params, allowed_token_ids=allowed, bad_words=tuple(words))
    _check_something_is_left(restricted, serving.tokens.vocab_size)
    return restricted


def _allowed(ids: Sequence[int], vocabulary: int) -> tuple[int, ...]:
    if wrong := [id for id in ids if id >= vocabulary]:
        text = f"not a valid token id in allowed_token_ids: {wrong[0]} (0 to {vocabulary - 1})"
        raise BadRequest(text, param="allowed_token_ids")
    return tuple(dict.fromkeys(ids))


def _tokenized(serving: ModelServing, word: str) -> list[tuple[int, ...]]:
    """Returns the word's tokens at the start of a text, and after a space unless that ends with the same tokens."""
    text = word.lstrip()
    with serving.tokenizing("bad_words"):
        first, later = (tuple(serving.tokens.encode(said, False, _ANY_LENGTH)) for said in (text, f" {text}"))
    if not text or not first:
        raise BadRequest(f"not a valid word in bad_words: {word[:40]!r} (it has no tokens)", param="bad_words")
    spellings = [first] if later[-len(first) :] == first else [first, later]
    if (longest := max(map(len, spellings))) > MAX_BAD_WORD_TOKENS:
        text = f"not a valid word in bad_words: {word[:40]!r} has {longest} tokens (1 to {MAX_BAD_WORD_TOKENS})"
        raise BadRequest(text, param="bad_words")
    return spellings


def _check_something_is_left(params: SamplingParams, vocabulary: int) -> None:
    """Raises BadRequest if no answer is possible.

    Dead ends that depend on earlier words end the answer with an error.
    """
    allowed = set(params.allowed_token_ids) or set(range(vocabulary))
    ends = set(params.stop_token_ids)
    must_end = bool(params.grammar) and params.grammar_kind != REASONING  # a grammar of reasoning may only bound that
    if must_end and not allowed & ends:
        text = (
            f"allowed_token_ids has none of the tokens that end an answer, {sorted(ends)[:_SHOWN]}: no answer could end"
        )
        raise BadRequest(text, param="allowed_token_ids")
    forbidden = {word[0] for word in params.bad_words if len(word) == 1}
    if not allowed - forbidden - (ends if params.min_tokens else set()):
        param = "allowed_token_ids" if params.allowed_token_ids else "bad_words"
        raise BadRequest(f"{param}: no token is left that an answer could begin with", param=param)
