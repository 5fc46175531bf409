"""The tokens of a model as bytes, read from its files without a tokenizer library."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legato_grammar.errors import UnreadableVocabulary
from legato_protocol.model_files import gguf_header, token_bytes

_NORMAL = 1  # type of a token in a GGUF file, and the default
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
_BYTE = 6
_DECODERS = {"gpt2": "ByteLevel", "llama": "ByteFallback"}  # by tokenizer model of a GGUF file


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokens as bytes, by id. `special` and empty tokens are never part of a text."""

    tokens: tuple[bytes, ...]
    special: frozenset[int]


SINGLE_BYTES = Vocabulary(tuple(bytes([byte]) for byte in range(256)), frozenset())


def read(path: Path, size: int) -> Vocabulary:
    """Reads the vocabulary of a GGUF file or a Hugging Face folder, padded to `size`, the number of the model's logits.
    Raises UnreadableVocabulary."""
    try:
        tokens, special = _folder(path / "tokenizer.json") if path.is_dir() else _gguf(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableVocabulary(f"{path}: its tokens cannot be read: {error!r}") from None
    table = [tokens.get(id, b"") for id in range(size)]
    return Vocabulary(tuple(table), frozenset(id for id, raw in enumerate(table) if id in special or not raw))


def _gguf(path: Path) -> tuple[dict[int, bytes], set[int]]:
    metadata = gguf_header.load(path).metadata
    if (model := metadata.get("tokenizer.ggml.model")) not in _DECODERS:
        raise ValueError(f"tokenizer model {model!r} is not supported; supported: {', '.join(_DECODERS)}")
    ordinary, added = _readers({_DECODERS[model]})
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    special = {id for id, kind in enumerate(kinds) if kind not in (_NORMAL, _BYTE, _USER_DEFINED)}
    readers = [added if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) else ordinary for kind in kinds]
    return {id: to_bytes(token) for id, (token, to_bytes) in enumerate(zip(tokens, readers, strict=True))}, special


def _folder(file: Path) -> tuple[dict[int, bytes], set[int]]:
    """Reads byte-level vocabularies, and SentencePiece's with byte fallback."""
    content = json.loads(file.read_bytes())
    to_bytes, added_to_bytes = _readers(set(re.findall(r'"type":\s*"(\w+)"', json.dumps(content.get("decoder")))))
    vocabulary: dict[str, int] | Sequence[Any] = content["model"]["vocab"]
    if not isinstance(vocabulary, dict):  # Unigram: [token, score] by id
        vocabulary = {entry[0]: id for id, entry in enumerate(vocabulary)}
    tokens = {id: to_bytes(token) for token, id in vocabulary.items()}
    added = content.get("added_tokens") or []
    tokens |= {token["id"]: added_to_bytes(token["content"]) for token in added}
    return tokens, {token["id"] for token in added if token.get("special")}


def _readers(decoders: set[str]) -> tuple[Callable[[str], bytes], Callable[[str], bytes]]:
    """Returns the readers of the vocabulary's tokens and of added tokens, which no alphabet of bytes encodes."""
    if "ByteLevel" in decoders:
        return token_bytes.byte_level, str.encode
    if "ByteFallback" in decoders:
        return token_bytes.sentence_piece, token_bytes.sentence_piece
    raise ValueError(f"decoder {sorted(decoders)} is not supported; supported: ByteLevel, ByteFallback")
