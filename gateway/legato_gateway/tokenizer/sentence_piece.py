"""A SentencePiece vocabulary of a GGUF file as a tokenizer: Llama 2, Mistral, Phi-3, Gemma.

SentencePiece merges the two neighbours whose union has the best score, again and again. Byte-pair encoding does so with
the pairs of all tokens in the order of scores. As in llama.cpp, a space precedes each piece of text between added
tokens, if the file requests one before a text.
"""

from math import isfinite
from typing import Any, Final

from tokenizers import Tokenizer, decoders, models, normalizers

from legato_gateway.tokenizer.files import TokenizeError

DEFAULTS: Final = {"unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # llama.cpp's, for missing keys
_SPACE: Final = "▁"
_NORMAL, _USER_DEFINED = 1, 4
_WORDS: Final = (_NORMAL, _USER_DEFINED)  # types of tokens that pieces of text are merged into


def tokenizer(values: dict[str, Any], tokens: list[str], source: str) -> Tokenizer:
    """Returns the tokenizer, without added tokens, of the `tokenizer.ggml.` metadata `values`. Raises TokenizeError."""
    vocabulary = {token: id for id, token in enumerate(tokens)}
    unknown = values["unknown_token_id"]
    made = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(_scores(values, tokens, source)),
            byte_fallback=True,
            unk_token=tokens[unknown] if unknown in range(len(tokens)) else None,
            fuse_unk=True,
        )
    )
    prefix = [normalizers.Prepend(_SPACE)] if values.get("add_space_prefix", True) else []
    made.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    made.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


def _scores(values: dict[str, Any], tokens: list[str], source: str) -> dict[str, float]:
    """Returns the score of each token that text is merged into."""
    scores, types = values.get("scores"), values.get("token_type", [_NORMAL] * len(tokens))
    for key, given in (("scores", scores), ("token_type", types)):
        if not isinstance(given, list) or len(given) != len(tokens):
            raise TokenizeError(f"{source}: tokenizer.ggml.{key} has to be a list of {len(tokens)} numbers")
    if not all(isinstance(score, float) and isfinite(score) for score in scores or ()):
        raise TokenizeError(f"{source}: tokenizer.ggml.scores has to be a list of finite numbers")
    rows = zip(tokens, scores or (), types, strict=True)
    words = {token: score for token, score, kind in rows if kind in _WORDS}
    ranks = [score for token, score in words.items() if len(token) > 1]
    if len(set(ranks)) == 1 < len(ranks):
        raise TokenizeError(f"{source}: all tokenizer.ggml.scores are {ranks[0]}; they have to rank the tokens")
    return words


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """Returns the pairs that make up each token, in the order of tokens' scores."""
    return [
        (token[:at], token[at:])
        for token in sorted(scores, key=scores.__getitem__, reverse=True)
        for at in range(1, len(token))
        if token[:at] in scores and token[at:] in scores
    ]
