"""Opens a draft model, and checks that it has the tokens of the model that it drafts for."""

from itertools import count
from pathlib import Path

from legato_engine.errors import DifferentTokens
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights
from legato_grammar import vocabulary
from legato_grammar.errors import UnreadableVocabulary


def open_draft(path: Path, model: Checkpoint) -> Checkpoint:
    """Opens the draft model at `path` for `model`. Raises ModelError; DifferentTokens names the first difference."""
    draft = open_weights(path)
    theirs, ours = _tokens(model), _tokens(draft)
    sizes = f"{len(theirs):,} tokens there, {len(ours):,} here"
    for token, there, here in zip(count(), theirs, ours, strict=False):
        if there != here:
            raise DifferentTokens(
                f"{path}: cannot draft for {model.path}, which has other tokens: token {token} is {_shown(there)} "
                f"there and {_shown(here)} here ({sizes}); allowed is a model with the same tokenizer"
            )
    if len(theirs) > (rows := draft.config.vocab_size):
        raise DifferentTokens(
            f"{path}: cannot draft for {model.path}: it has embeddings of {rows:,} tokens only ({sizes}); allowed is a "
            "model with the same tokenizer"
        )
    return draft


def _tokens(checkpoint: Checkpoint) -> tuple[bytes, ...]:
    """The tokens of a model, without padding after the last one. Raises DifferentTokens if they cannot be read."""
    try:
        tokens = vocabulary.read(checkpoint.path, checkpoint.config.vocab_size).tokens
    except UnreadableVocabulary as error:
        raise DifferentTokens(f"{error}; the tokens of a model and its draft model are compared") from None
    used = len(tokens)
    while used and not tokens[used - 1]:
        used -= 1
    return tokens[:used]


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace")) if token else "none"
