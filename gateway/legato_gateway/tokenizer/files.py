"""What a model's files say about its tokens: common to both formats, and reading a Hugging Face folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from legato_gateway import generation_config


class TokenizeError(ValueError):
    """No tokens can be had: the tokenizer cannot be loaded, or the text or the messages cannot be tokenized."""


@dataclass(frozen=True)
class TokenizerFiles:
    """What a model's files say about its tokens."""

    tokenizer: Tokenizer
    chat_template: str | None
    bos: str
    eos: str
    eos_ids: tuple[int, ...]  # any of them ends a sequence


def from_folder(path: Path) -> TokenizerFiles:
    """Reads a Hugging Face folder. Raises TokenizeError, which names the file."""
    file = path / "tokenizer.json"
    if not file.exists():
        raise TokenizeError(f"{file}: no such file; a model folder needs its tokenizer there")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizeError(f"{file}: {error}") from None
    tokenizer.no_truncation()  # how its makers cut and padded texts for training is saved with it
    tokenizer.no_padding()
    settings = _json(path / "tokenizer_config.json")
    bos, eos = (_content(settings.get(key)) for key in ("bos_token", "eos_token"))
    eos_ids = {id for id in (*_declared_ends(path), tokenizer.token_to_id(eos)) if id is not None}
    return TokenizerFiles(tokenizer, _folder_template(path, settings), bos, eos, tuple(sorted(eos_ids)))


def _declared_ends(path: Path) -> tuple[int, ...]:
    try:
        return generation_config.declared_ends(path)
    except generation_config.BadGenerationConfig as error:
        raise TokenizeError(str(error)) from None


def _folder_template(path: Path, settings: dict[str, Any]) -> str | None:
    if (path / "chat_template.jinja").exists():
        return (path / "chat_template.jinja").read_text(encoding="utf-8")
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {entry.get("name"): entry.get("template") for entry in found}.get("default")
    return found if isinstance(found, str) else None


def _content(token: object) -> str:
    """A special token in tokenizer_config.json: its text, or an object that holds it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise TokenizeError(f"{path}: no JSON: {error}") from None
    return found if isinstance(found, dict) else {}
