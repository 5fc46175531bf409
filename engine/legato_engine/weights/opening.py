"""Opens a model's weights: detects the format, and checks that every tensor is there before the worker serves."""

import logging
from dataclasses import replace
from pathlib import Path

import torch

from legato_engine.errors import MissingTensor, ModelNotFound, UnsupportedFormat, UnsupportedModel, WrongShape
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import expected_shapes
from legato_engine.weights.gguf import GgufFile
from legato_engine.weights.huggingface import HuggingFaceFolder
from legato_engine.weights.quantization import folder as quantized_folder
from legato_engine.weights.quantization import rounding

_log = logging.getLogger(__name__)

_EMBEDDINGS, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
# A copy of tied embeddings, a constant in old files, and scales that only KV in e4m3 needs (`kv_scales`).
_OPTIONAL = (_HEAD, ".rotary_emb.inv_freq", ".k_scale", ".v_scale", ".kv_scale")


def open_weights(path: Path | str, quantization: str = "None") -> Checkpoint:
    """Opens the weights in a GGUF file or a Hugging Face folder, and checks them against the config. `quantization` is
    the format that linear layers are rounded to while they are loaded: None, FP8 or Int8.

    Reads headers, and the output head if the config ties it to the embeddings; the tensors are mapped. Raises
    ModelError: ModelNotFound, CorruptModel, UnsupportedModel, UnsupportedFormat, MissingTensor or WrongShape.
    """
    path = Path(path)
    checkpoint = _open(path)
    if _has_own_head(checkpoint):
        checkpoint.config = replace(checkpoint.config, tie_word_embeddings=False)
    if checkpoint.config.predictor_layers:
        _log.info("%s: layers that predict further tokens are not read: %s", path, [*checkpoint.config.predictors])
    expected, names = expected_shapes(checkpoint.config), checkpoint.names()
    for name, shape in expected.items():
        if name not in names:
            raise MissingTensor(f"{path}: tensor {name} of shape {list(shape)} is missing")
        if checkpoint.shape(name) != shape:
            actual = list(checkpoint.shape(name))
            raise WrongShape(f"{path}: tensor {name} has shape {actual}; the model's config requires {list(shape)}")
    for name in sorted(names - expected.keys()):
        if not name.endswith(_OPTIONAL):
            raise UnsupportedModel(f"{path}: tensor {name} has no place in a {checkpoint.config.architecture}")
    return checkpoint if quantization == "None" else rounding.rounded(checkpoint, quantization)


def _has_own_head(checkpoint: Checkpoint) -> bool:
    """True if the file has an output head that differs from the embeddings, although the config ties both. Such a head
    is used, as in transformers."""
    if not checkpoint.config.tie_word_embeddings or not {_EMBEDDINGS, _HEAD} <= checkpoint.names():
        return False
    if not checkpoint.quantized().isdisjoint((_EMBEDDINGS, _HEAD)):
        return True
    return not torch.equal(checkpoint.tensor(_EMBEDDINGS), checkpoint.tensor(_HEAD))


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        folder = HuggingFaceFolder(path)
        return folder if folder.declared is None else quantized_folder.read(folder, folder.declared)
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file or folder")
    if path.suffix == ".safetensors":
        raise UnsupportedFormat(f"{path}: give the folder that holds this file and its config.json")
    return GgufFile(path)
