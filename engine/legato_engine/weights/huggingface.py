"""Weights from a Hugging Face folder: config.json and safetensors, in one file or in shards with an index."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from legato_engine.errors import (
    CorruptModel,
    MissingTensor,
    ModelNotFound,
    TooLittleMemory,
    UnsupportedFormat,
    WrongShape,
)
from legato_engine.models import config as configs
from legato_engine.models.hyperparameters import keys
from legato_engine.weights import fused_experts
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.config_file import CONFIG, read_json
from legato_engine.weights.cut import Cut, Span
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.fused_experts import ExpertPart
from legato_engine.weights.quantization import config as quantizations
from legato_engine.weights.reading.span_reader import RowSpans, SpanReader, rows_of
from legato_protocol.model_files import lfs_pointer

_log = logging.getLogger(__name__)

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DTYPES = tuple(_TYPES)
_CODES = {"I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# Multimodal models (`keys.MULTIMODAL`): prefixes of the text model's tensors, as older and newer versions of
# transformers write them, and the prefixes in a text-only model. Other tensors belong to other modalities.
_TEXT_PREFIXES = {
    "language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model.",
    "lm_head.": "lm_head.",
}  # fmt: skip


class HuggingFaceFolder(Checkpoint):
    """A folder as `save_pretrained` writes it, with the tensors of the files.

    Shards are mapped; pages are read when a tensor is. `read` reads files instead, which is faster."""

    def __init__(self, path: Path) -> None:
        raw = read_json(path / CONFIG)
        self.path = path
        self.declared = quantizations.from_folder(path, raw)  # None: no tensor may be quantized
        self.config = configs.from_huggingface(raw, f"{path}/{CONFIG}")
        where = _shards(path)
        self._files = tuple(sorted(set(where.values()) if where else {path / _SINGLE}))
        self._reader = SpanReader()
        shards = {file: _open(file) for file in self._files}
        stored = where or dict.fromkeys(shards[self._files[0]].keys(), self._files[0])
        self._multimodal = keys.text_config(raw, f"{path}/{CONFIG}") is not None
        self._stored = {name: _Stored(name, shards[file], file) for name, file in stored.items()}
        if self._multimodal:
            self._stored = {own: each for name, each in self._stored.items() if (own := text_name(name)) is not None}
        unread = tuple(f"model.layers.{layer}." for layer in self.config.predictors)
        self._stored = {name: each for name, each in self._stored.items() if not name.startswith(unread)}
        if self.config.architecture in fused_experts.ARCHITECTURES:
            self._split_experts()
        held = {file: frozenset(shard.keys()) for file, shard in shards.items()}
        for name, file in where.items():
            if name not in held[file]:
                raise CorruptModel(f"{file}: tensor {name} is missing, although {_INDEX} lists it there")
        if self.declared is None:
            for name in self._stored:
                self.check(name)

    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        return {file: [span for span in spans.values() if span.size] for file, spans in self._spans.items()}

    @cached_property
    def _spans(self) -> dict[Path, dict[str, FileSpan]]:
        """Spans of tensors by their names in each file."""
        return {file: _read_spans(file) for file in self._files}

    def names(self) -> frozenset[str]:
        return frozenset(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        stored = self._at(name)
        shape = tuple(stored.slice().get_shape())
        return shape if stored.part is None else stored.part.shape(shape)

    def tensor(self, name: str) -> torch.Tensor:
        stored = self._at(name)
        if stored.part is not None:
            return stored.part.of(self.entry(name, stored.part.expert))
        tensor: torch.Tensor = stored.shard.get_tensor(stored.name)
        return tensor

    def read(self, name: str, out: torch.Tensor) -> None:
        stored, dtype = self._at(name), _TYPES.get(self.dtype(name))
        if stored.part is not None or dtype is None or not (out.is_cuda or dtype == out.dtype) or out.is_meta:
            super().read(name, out)
        else:
            self._reader.read(stored.file, self._spans[stored.file][stored.name], dtype, out)

    def read_part(self, name: str, cut: Cut, out: torch.Tensor) -> None:
        stored, dtype = self._at(name), _TYPES.get(self.dtype(name))
        shape = self.shape(name)
        unlike = dtype is None or not (out.is_cuda or dtype == out.dtype) or out.is_meta
        if unlike or stored.part is not None or len(shape) != 2:
            super().read_part(name, cut, out)
            return
        assert dtype is not None
        first = 0
        for part in cut.stored(shape):
            span = self._part(stored, part.outputs, part.inputs)
            count = part.outputs[1] - part.outputs[0]
            self._reader.read(stored.file, span, dtype, out[first : first + count])
            first += count

    def read_to(self, name: str, place: torch.device, rows: Span, columns: Span) -> torch.Tensor:
        """A part of a matrix in its own dtype, read by several threads."""
        dtype = {**_TYPES, **_CODES}[self.dtype(name)]
        return self._read_bytes(name, place, rows, columns).view(dtype).view(rows[1] - rows[0], -1)

    def read_entry(self, name: str, place: torch.device, index: int) -> torch.Tensor:
        """The tensor's part at `index` of its first axis, uint8, read by several threads."""
        shape = tuple(self._at(name).slice().get_shape())
        return self._read_bytes(name, place, (index, index + 1), (0, math.prod(shape[1:]))).view(shape[1:])

    def _read_bytes(self, name: str, place: torch.device, rows: Span, columns: Span) -> torch.Tensor:
        stored = self._at(name)
        span = self._part(stored, rows, columns)
        out = torch.empty(span.size, dtype=torch.uint8, device=place)
        self._reader.read(stored.file, span, torch.uint8, out)
        return out

    def _part(self, stored: "_Stored", rows: Span, columns: Span) -> RowSpans:
        """The bytes of a part of a tensor, seen as a matrix."""
        whole, shape = self._spans[stored.file][stored.name], tuple(stored.slice().get_shape())
        each = whole.size // math.prod(shape)
        return rows_of(whole, shape[0], rows, (columns[0] * each, columns[1] * each))

    def release(self) -> None:
        self._reader.close()

    def entry(self, name: str, index: int) -> torch.Tensor:
        """The tensor's part at `index` of its first axis in the file, without reading the others."""
        part: torch.Tensor = self._at(name).slice()[index]
        return part

    def dtype(self, name: str) -> str:
        """The type as safetensors names it, such as `BF16`. Raises MissingTensor."""
        return str(self._at(name).slice().get_dtype())

    def layer_names(self, module: str) -> tuple[str, ...]:
        """The names that a layer may have in a `quantization_config`: its own, and those in the multimodal
        model."""
        renamed = _TEXT_PREFIXES.items() if self._multimodal else ()
        return (module, *(long + module.removeprefix(own) for long, own in renamed if module.startswith(own)))

    def check(self, name: str) -> None:
        """Raises UnsupportedFormat if a weight or bias is not in floating point of 16 or 32 bits."""
        dtype = self.dtype(name)
        if dtype not in DTYPES and name.endswith((".weight", ".bias")):
            allowed = ", ".join(DTYPES)
            raise UnsupportedFormat(f"{self.path}: tensor {name} has type {dtype}; supported: {allowed}")

    def _split_experts(self) -> None:
        """Replaces tensors of all experts by the weights and biases of each. Raises WrongShape."""
        for name in [name for name in self._stored if fused_experts.is_fused(name)]:
            stored, axes = self._stored.pop(name), 2 if name.endswith("_bias") else 3
            if len(shape := stored.slice().get_shape()) != axes:
                raise WrongShape(f"{self.path}: tensor {name} has shape {list(shape)}; {axes} dimensions are needed")
            self._stored |= {own: stored._replace(part=part) for own, part in fused_experts.parts(name, shape)}

    def _at(self, name: str) -> "_Stored":
        if name not in self._stored:
            raise MissingTensor(f"{self.path}: tensor {name} is missing")
        return self._stored[name]


class _Stored(NamedTuple):
    """A tensor's name in its file, and the part of that tensor, if it is not the whole."""

    name: str
    shard: Any
    file: Path
    part: ExpertPart | None = None

    def slice(self) -> Any:
        return self.shard.get_slice(self.name)


def text_name(name: str) -> str | None:
    """The tensor's name in the text-only model; None if it belongs to another modality."""
    prefix = next((prefix for prefix in _TEXT_PREFIXES if name.startswith(prefix)), None)
    return None if prefix is None else _TEXT_PREFIXES[prefix] + name.removeprefix(prefix)


def _shards(path: Path) -> dict[str, Path]:
    """Returns each tensor's file by the index; empty if one file has all of them, which takes precedence."""
    if not (path / _INDEX).exists():
        return {}
    if (path / _SINGLE).exists():
        _log.warning("%s: weights are read only from %s; %s is ignored", path, _SINGLE, _INDEX)
        return {}
    names = read_json(path / _INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) and "/" not in file for file in names.values()):
        raise CorruptModel(f"{path / _INDEX}: weight_map has to map tensor names to file names")
    return {name: path / file for name, file in names.items()}


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ModelNotFound(f"{path}: no such file; weights are read from {_SINGLE}, or shards with {_INDEX}") from None
    except SafetensorError as error:
        with path.open("rb") as file:
            advice = lfs_pointer.advice(file.read(64))
        raise CorruptModel(f"{path}: {advice or f'corrupt or truncated: {error}'}") from None
    except RuntimeError as error:  # of torch, which maps the file
        mib = path.stat().st_size >> 20
        raise TooLittleMemory(f"{path}: its {mib:,} MiB cannot be mapped into memory: {error}") from None


def _read_spans(path: Path) -> dict[str, FileSpan]:
    """Spans of the tensors in a safetensors file: they follow a JSON header, which its length precedes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    places = {name: info["data_offsets"] for name, info in header.items() if name != "__metadata__"}
    return {name: FileSpan(8 + length + begin, end - begin) for name, (begin, end) in places.items()}
