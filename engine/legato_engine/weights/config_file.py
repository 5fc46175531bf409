"""Reads a model's config without its weights: from a folder's `config.json` or a GGUF file's header. No torch."""

import json
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from legato_engine.errors import CorruptModel, ModelNotFound, UnsupportedFormat
from legato_engine.models import config as configs
from legato_engine.models import gguf_config
from legato_engine.models.config import ModelConfig
from legato_protocol.model_files import gguf_header, lfs_pointer

CONFIG = "config.json"


def read(path: Path) -> ModelConfig:
    """Returns the config of the model at `path`. A folder needs no weights. Raises ModelError.

    Per-frequency factors of rotary scaling in a GGUF file are not read, because they are a tensor.
    """
    if path.is_dir():
        return configs.from_huggingface(read_json(path / CONFIG), f"{path}/{CONFIG}")
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file or folder")
    if path.suffix == ".safetensors":
        raise UnsupportedFormat(f"{path}: give the folder that holds this file and its {CONFIG}")
    header = _header(path)
    return gguf_config.read(header.metadata, frozenset(header.tensors), {}, str(path))


def read_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a model's folder. Raises ModelNotFound, CorruptModel."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file; a model folder needs config.json and *.safetensors") from None
    try:
        value = json.loads(content)
    except ValueError as error:
        raise CorruptModel(f"{path}: {lfs_pointer.advice(content) or f'not JSON: {error}'}") from None
    if not isinstance(value, dict):
        raise CorruptModel(f"{path}: a JSON object is needed")
    return value


def _header(path: Path) -> gguf_header.Header:
    if not path.stat().st_size:
        raise CorruptModel(f"{path}: the file is empty")
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        try:
            return gguf_header.parse(data)
        except gguf_header.BadGguf as error:
            raise CorruptModel(f"{path}: {error}") from None
