"""A digest of a model's files without its weights: tokenizer, chat template, sizes.

A gateway tokenizes text with its copy of a model's files, and a worker computes with its own copy: if the digests
differ, a token id may mean another word. Weights are left out because they are too large to read at every start of a
gateway; workers with different weights have different KV revisions.
"""

from hashlib import sha256
from pathlib import Path

import msgspec

from legato_protocol.model_files import gguf_header

FILES = ("chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def digest(path: Path) -> str:
    """Returns 32 hex digits for a GGUF file or a Hugging Face folder. Raises OSError, BadGguf."""
    return sha256(b"".join(_folder(path)) if path.is_dir() else _header(path)).hexdigest()[:32]


def _folder(path: Path) -> list[bytes]:
    """Returns a digest for each of FILES that exists."""
    files = [path / name for name in FILES]
    return [sha256(file.name.encode() + file.read_bytes()).digest() for file in files if file.is_file()]


def _header(path: Path) -> bytes:
    return msgspec.msgpack.encode(gguf_header.load(path))
