"""A model's tokens: converts text and chat messages to ids, and ids to bytes and text.

Safe to use from several threads: only caches change after loading, and tokenizing releases the interpreter lock, so
that long prompts delay nobody else.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from tokenizers import Tokenizer

from legato_gateway.request import TOKEN_MARK
from legato_gateway.tokenizer import files as tokenizer_files
from legato_gateway.tokenizer import gguf
from legato_gateway.tokenizer.block_cache import CacheCounts
from legato_gateway.tokenizer.block_encoder import BlockEncoder
from legato_gateway.tokenizer.chat_template import ChatTemplate, TemplateFault
from legato_gateway.tokenizer.detokenizer import Detokenizer, StopStrings
from legato_gateway.tokenizer.files import TokenizeError, TokenizerFiles
from legato_gateway.tokenizer.plain_text import SpecialTexts
from legato_protocol.model_files import token_bytes

__all__ = ["Detokenizer", "ModelTokenizer", "StopStrings", "TextTooLong", "TokenizeError"]

_NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
_MOST_TABLES = 8  # cached, of some megabytes each
_loaded: "WeakValueDictionary[Path, ModelTokenizer]" = WeakValueDictionary()
_CONTROL = re.compile(r"<[|｜].+>|<.+[|｜]>")  # tokens around messages, which files need not mark as special
_COMPOSED = 4  # most bytes that a normalizer composes into one: NFC 9 into 3, NFKC 4 into 1


class TextTooLong(TokenizeError):
    """A text of `size` bytes has more tokens than allowed, whatever they are."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"a text of {size} bytes is more than {most} tokens")
        self.size = size


class ModelTokenizer:
    """The tokenizer and chat template of one model. It is pickled as its path, if it was loaded from one."""

    def __init__(self, files: TokenizerFiles, path: Path | None = None) -> None:
        self._path = path
        self._tokenizer = files.tokenizer
        self._encoder = BlockEncoder(files.tokenizer)
        self._bytes = _byte_table(files)
        self.vocab_size = min(len(self._bytes), files.rows or len(self._bytes))  # ids may have holes
        self.eos_ids: tuple[int, ...] = tuple(id for id in files.eos_ids if files.rows is None or id < files.rows)
        self._longest = max(map(len, self._bytes)) * (1 if files.tokenizer.normalizer is None else _COMPOSED)
        self.declared_length = files.longest  # tokens of the longest sequence that the model declares
        added = files.tokenizer.get_added_tokens_decoder()
        self._special = {id: token.content for id, token in added.items() if token.special and id < self.vocab_size}
        self.special_texts = SpecialTexts(
            [token.content for token in added.values() if token.special or _CONTROL.fullmatch(token.content)]
        )
        self.special_around = _special_around(files.tokenizer)  # ids that the model expects before and after a text
        self._tables = {(frozenset[int](), frozenset[int]()): self._table(frozenset(), frozenset())}
        self.chat_template = files.chat_template
        self.tool_template = files.tool_template or files.chat_template
        self._template = _template(files.chat_template, files.special)
        self._tool_template = _template(files.tool_template, files.special) or self._template

    @classmethod
    def load(cls, path: Path | str) -> "ModelTokenizer":
        """Loads the tokens of a Hugging Face folder or a GGUF file. Raises TokenizeError, which names the file."""
        path = Path(path)
        made = cls(tokenizer_files.from_folder(path) if path.is_dir() else gguf.from_gguf(path), path)
        _loaded[path] = made
        return made

    def __reduce__(self) -> tuple[Callable[[Path | None], "ModelTokenizer"], tuple[Path | None]]:
        return _of_process, (self._path,)

    @property
    def cache_counts(self) -> CacheCounts:
        """The use of the cache of this process."""
        return self._encoder.cache.counts

    def encode(
        self,
        text: str,
        add_special: bool = True,
        most: int | None = None,
        keep: int | None = None,
        cut: str = "",
        salt: str | None = None,
    ) -> list[int]:
        """Returns the ids of `text`, with `add_special` including those that the model expects around it.

        Special tokens written in `text` count as such. Raises TokenizeError for invalid Unicode, and immediately
        TextTooLong for text whose length proves that it has more than `most` tokens. With `keep`, no text is too long:
        the last tokens are kept, that many including the special ones around them. Each `cut` in the text is removed,
        and parts between are tokenized separately. Texts with one `salt` share cached ids; None: nothing is cached.
        """
        try:
            if keep is None and most is not None and (size := len(text.encode())) > most * self._longest:
                raise TextTooLong(size, most)
            ids = self._encoder.ids(text.split(cut) if cut else [text], salt)
        except (UnicodeEncodeError, TypeError) as error:
            raise TokenizeError(f"text that is no valid Unicode: {error}") from None
        before, behind = self.special_around if add_special else ((), ())
        if keep is not None:
            ids = ids[max(0, len(ids) - max(0, keep - len(before) - len(behind))) :]
        return [*before, *ids, *behind] if before or behind else ids

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] = _NO_VARIABLES,
        continued: bool = False,
    ) -> str:
        """Returns the prompt text for these messages, up to the assistant's turn or to the end of a last message that
        is continued. Raises TokenizeError."""
        template = self._tool_template if variables.get("tools") else self._template
        if template is None:
            raise TokenizeError("this model has no chat template; /v1/completions takes plain prompts")
        try:
            render = template.render_continued if continued else template.render
            return render(messages, variables)
        except TemplateFault as error:
            raise TokenizeError(str(error)) from None

    def template_takes(self, variable: str) -> bool:
        """True if a chat template reads a variable of this name."""
        templates = (self._template, self._tool_template)
        return any(variable in template.variables for template in templates if template is not None)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        most: int | None = None,
        variables: Mapping[str, Any] = _NO_VARIABLES,
        *,
        add_special: bool = False,
        keep: int | None = None,
        continued: bool = False,
        cut: str = "",
        salt: str | None = None,
    ) -> list[int]:
        """Returns the ids of the prompt for these messages, which may contain cuts. Raises the errors of `encode`.

        Templates write all special tokens themselves; `add_special` is for those that do not.
        """
        return self.encode(self.render_chat(messages, variables, continued), add_special, most, keep, cut, salt)

    def token_bytes(self, id: int) -> bytes:
        """Returns a token's bytes; none for an id that only pads the vocabulary."""
        return self._bytes[id] if 0 <= id < len(self._bytes) else b""

    def token_text(self, id: int) -> str:
        """Returns a token as in the vocabulary; empty for an id that only pads the vocabulary."""
        return self._tokenizer.id_to_token(id) or ""

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        """Returns the ids of special tokens with these texts."""
        return frozenset(id for id, text in self._special.items() if text in texts)

    @property
    def all_special_ids(self) -> frozenset[int]:
        """Every special token's id."""
        return frozenset(self._special)

    def detokenizer(self, shown: frozenset[int] = frozenset(), marked: frozenset[int] = frozenset()) -> Detokenizer:
        """Returns a detokenizer for one choice. Only these special tokens are shown, `marked` ones after TOKEN_MARK."""
        table = self._tables.get((shown, marked))
        if table is None:
            table = self._table(shown, marked)
            if len(self._tables) < _MOST_TABLES:  # clients choose which tokens are shown
                self._tables[shown, marked] = table
        return Detokenizer(table)

    def _table(self, shown: frozenset[int], marked: frozenset[int]) -> list[bytes]:
        table = list(self._bytes)
        for id in self._special.keys() - shown - marked:
            table[id] = b""
        for id in marked:
            table[id] = TOKEN_MARK.encode() + table[id]
        return table


def _of_process(path: Path | None) -> ModelTokenizer:
    """Returns the tokenizer that this process has loaded from `path`, or its parent before it was forked."""
    if path is None:
        raise TypeError("a tokenizer that was not loaded from a path cannot be unpickled")
    return _loaded.get(path) or ModelTokenizer.load(path)


def _template(source: str | None, variables: Mapping[str, Any]) -> ChatTemplate | None:
    if source is None:
        return None
    try:
        return ChatTemplate(source, variables)
    except TemplateFault as error:
        raise TokenizeError(str(error)) from None


def _special_around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids put before and after a text, read from the first text with tokens of its own."""
    for text in ("a", *tokenizer.get_vocab(with_added_tokens=True)):
        encoding = tokenizer.encode(text)
        marks = encoding.special_tokens_mask  # 1: not from the text
        if 0 in marks:
            first, last = marks.index(0), len(marks) - marks[::-1].index(0)
            return tuple(encoding.ids[:first]), tuple(encoding.ids[last:])
    return (), ()


def _byte_table(files: TokenizerFiles) -> list[bytes]:
    """Returns the bytes of every token by id, as the tokenizer's own decoder makes them."""
    tokenizer = files.tokenizer
    decoder = tokenizer.decoder
    kinds = set(re.findall(r'"type":\s*"(\w+)"', _decoder_text(decoder)))
    literal: Callable[[str], bytes] | None = None
    if "ByteLevel" in kinds:
        to_bytes, literal = token_bytes.byte_level, str.encode  # added tokens are not written in its alphabet
    elif "ByteFallback" in kinds:
        to_bytes = token_bytes.sentence_piece
    else:
        raise TokenizeError(
            f"a tokenizer with decoder {sorted(kinds)} is not supported; supported: byte level or "
            "SentencePiece with byte fallback"
        )
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocabulary.values()) + 1)
    for token, id in vocabulary.items():
        table[id] = to_bytes(token)
    for id, added in tokenizer.get_added_tokens_decoder().items():
        table[id] = (literal or to_bytes)(added.content)
    return table


def _decoder_text(decoder: Any) -> str:
    """Returns the decoder in the format of tokenizer.json."""
    return json.dumps(json.loads(decoder.__getstate__())) if decoder is not None else ""
