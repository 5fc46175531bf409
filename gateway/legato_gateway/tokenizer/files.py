"""Tokenizer files of a model: the parts common to both formats, and the Hugging Face folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from legato_gateway import generation_config
from legato_protocol.model_files import lfs_pointer

SPECIAL_TOKENS = tuple(f"{kind}_token" for kind in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
ALWAYS_DEFINED = ("bos_token", "eos_token")  # empty if the model has none


class TokenizeError(ValueError):
    """Tokenizing failed: the tokenizer cannot be loaded, or the text or the messages cannot be tokenized."""


@dataclass(frozen=True)
class TokenizerFiles:
    """A model's tokenizer, templates and token metadata."""

    tokenizer: Tokenizer
    chat_template: str | None
    tool_template: str | None  # the one named `tool_use`, which chats with tools prefer
    special: Mapping[str, str]  # variables of templates, such as `bos_token`
    eos_ids: tuple[int, ...]  # each of them ends a sequence
    rows: int | None = None  # of the model's embedding, if known: a tokenizer may have more tokens
    longest: int | None = None  # tokens of the longest sequence that the model declares, if known


def from_folder(path: Path) -> TokenizerFiles:
    """Reads a Hugging Face folder. Raises TokenizeError, which names the file."""
    file = path / "tokenizer.json"
    if not file.exists():
        raise TokenizeError(f"{file}: no such file; a model folder needs its tokenizer there")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizeError(f"{file}: {lfs_pointer.advice(file.read_bytes()) or error}") from None
    tokenizer.no_truncation()  # the truncation and padding of its training are saved with it
    tokenizer.no_padding()
    settings = _json(path / "tokenizer_config.json")
    special = {key: _content(settings.get(key)) for key in SPECIAL_TOKENS}
    special = {key: text for key, text in special.items() if text or key in ALWAYS_DEFINED}
    eos_ids = {id for id in (*_declared_ends(path), tokenizer.token_to_id(special["eos_token"])) if id is not None}
    templates, config = _folder_templates(path, settings), _json(path / "config.json")
    if isinstance(text := config.get("text_config"), dict):  # of a model with further inputs
        config = config | text
    rows = config.get("vocab_size")
    return TokenizerFiles(
        tokenizer,
        templates.get("default"),
        templates.get("tool_use"),
        special,
        tuple(sorted(eos_ids)),
        rows if isinstance(rows, int) else None,
        _longest(config),
    )


def _longest(config: Mapping[str, Any]) -> int | None:
    """Returns `max_position_embeddings`, extended by YaRN if configured, as workers do."""
    length, scaling = config.get("max_position_embeddings"), config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(length, int) or length < 1:
        return None
    if not isinstance(scaling, dict) or "yarn" not in (scaling.get("rope_type"), scaling.get("type")):
        return length
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings", length)
    numbers = isinstance(factor, int | float) and isinstance(original, int)
    return max(length, int(factor * original)) if numbers else length


def _declared_ends(path: Path) -> tuple[int, ...]:
    try:
        return generation_config.declared_ends(path)
    except generation_config.BadGenerationConfig as error:
        raise TokenizeError(str(error)) from None


def _folder_templates(path: Path, settings: dict[str, Any]) -> dict[str, str]:
    """Returns templates by name. As in transformers, template files replace all of `tokenizer_config.json`."""
    paths = [path / "chat_template.jinja", *sorted((path / "additional_chat_templates").glob("*.jinja"))]
    if files := [each for each in paths if each.exists()]:
        names = ["default" if each.parent == path else each.stem for each in files]
        return {name: each.read_text(encoding="utf-8") for name, each in zip(names, files, strict=True)}
    given = settings.get("chat_template")
    entries = given if isinstance(given, list) else [{"name": "default", "template": given}]
    named = {entry.get("name"): entry.get("template") for entry in entries if isinstance(entry, dict)}
    return {str(name): template for name, template in named.items() if isinstance(template, str)}


def _content(token: object) -> str:
    """Returns the text of a special token in tokenizer_config.json, which may be inside an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(content := path.read_bytes())
    except ValueError as error:
        raise TokenizeError(f"{path}: {lfs_pointer.advice(content) or f'not JSON: {error}'}") from None
    return value if isinstance(value, dict) else {}
