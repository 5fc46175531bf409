"""A folder with a LoRA adapter, as PEFT saves it: opened from its headers, read when it is needed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import load as load_tensors

from legato_engine.adapters import config as configs
from legato_engine.adapters.config import CONFIG
from legato_engine.errors import (
    CorruptModel,
    MissingTensor,
    ModelNotFound,
    UnsupportedFormat,
    UnsupportedModel,
    WrongShape,
)
from legato_engine.layers.low_rank import Pair
from legato_engine.weights.huggingface import DTYPES, text_name
from legato_protocol.model_files import lfs_pointer

WEIGHTS = "adapter_model.safetensors"
_NAME = re.compile(r"(?:base_model\.model\.)?(?P<projection>.+)\.lora_(?P<half>[AB])\.weight")

Projections = Mapping[str, tuple[int, int]]  # outputs and inputs of each, by name


class _Half(NamedTuple):
    """One of the two matrices of a pair, with its name in the file."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """An adapter that fits the model. `digest` covers the contents of its two files."""

    path: Path
    digest: str
    rank: int
    scale: float
    values: int  # in all matrices
    _names: Mapping[str, tuple[str, str]]  # projection → its A and B in the file

    def read(self) -> dict[str, Pair]:
        """Reads the matrices by projection, in the file's number format; B is scaled.

        Raises ModelError, OSError; also if the files have changed since they were opened.
        """
        config, weights = _contents(self.path)
        if _digest(config, weights) != self.digest:
            raise CorruptModel(f"{self.path}: the adapter's files have changed since this worker read them")
        tensors = load_tensors(weights)
        for name, tensor in tensors.items():
            if not torch.isfinite(tensor).all():
                raise CorruptModel(f"{self.path / WEIGHTS}: tensor {name} has values that are not finite")
        return {
            projection: Pair(tensors[a], tensors[b].float() * self.scale) for projection, (a, b) in self._names.items()
        }


def open_adapter(path: Path, projections: Projections, max_rank: int, own_max_rank: int | None = None) -> AdapterFolder:
    """Opens the adapter in `path` for a model with these projections. `max_rank` holds for all adapters.

    Raises ModelError unless every tensor belongs to a projection of the model, and every target in the config has its
    tensors.
    """
    config = configs.read(path, max_rank, own_max_rank)
    raw, weights = _contents(path)
    file = path / WEIGHTS
    halves = _halves(file, _shapes(file, weights))
    names = {}
    for projection, half in sorted(halves.items()):
        if projection not in projections and "expert" in projection:
            raise UnsupportedModel(f"{file}: {projection} belongs to an expert: adapters of experts are not supported")
        if projection not in projections:
            raise UnsupportedModel(f"{file}: {projection} is not a projection of this model: of another base?")
        for letter in "AB":
            if letter not in half:
                raise MissingTensor(f"{file}: tensor {projection}.lora_{letter}.weight is missing")
        outputs, inputs = projections[projection]
        for letter, shape in (("A", (config.rank, inputs)), ("B", (outputs, config.rank))):
            if half[letter].shape != shape:
                raise WrongShape(
                    f"{file}: tensor {half[letter].name} has shape {list(half[letter].shape)}; this model, and r in "
                    f"{CONFIG}, ask for {list(shape)}: of another base?"
                )
        names[projection] = half["A"].name, half["B"].name
    targets = tuple(f".{name}" for name in config.targets or ())
    for projection in projections:
        if projection.endswith(targets) and projection not in names:
            raise MissingTensor(f"{file}: tensor {projection}.lora_A.weight is missing: of another base?")
    if not names:
        raise MissingTensor(f"{file}: there are no tensors in it")
    values = sum(config.rank * sum(projections[name]) for name in names)
    return AdapterFolder(path, _digest(raw, weights), config.rank, config.scale, values, names)


def _contents(path: Path) -> tuple[bytes, bytes]:
    try:
        return (path / CONFIG).read_bytes(), (path / WEIGHTS).read_bytes()
    except FileNotFoundError as error:
        raise ModelNotFound(f"{error.filename}: no such file; an adapter's folder has {CONFIG} and {WEIGHTS}") from None


def _digest(config: bytes, weights: bytes) -> str:
    return sha256(sha256(config).digest() + sha256(weights).digest()).hexdigest()[:32]


def _shapes(file: Path, data: bytes) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors in a file."""
    try:
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise CorruptModel(f"{file}: {lfs_pointer.advice(data) or f'corrupt or truncated: {error}'}") from None
    for name, info in tensors:
        if info["dtype"] not in DTYPES:
            allowed = ", ".join(DTYPES)
            raise UnsupportedFormat(f"{file}: tensor {name} has type {info['dtype']}; supported: {allowed}")
    return {name: tuple(info["shape"]) for name, info in tensors}


def _halves(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, _Half]]:
    """Tensors by projection and half."""
    halves: dict[str, dict[str, _Half]] = {}
    for name, shape in shapes.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise UnsupportedModel(f"{file}: tensor {name} is not supported; supported: PROJECTION.lora_A.weight and B")
        projection = text_name(match["projection"]) or match["projection"]  # of a multimodal base, or a text-only one
        if match["half"] in halves.setdefault(projection, {}):
            raise CorruptModel(f"{file}: {halves[projection][match['half']].name} and {name} are of one projection")
        halves[projection][match["half"]] = _Half(name, shape)
    return halves
