"""Opening a model's weights: finds the format, and checks that every tensor is there before anything serves."""

from collections.abc import Iterator
from pathlib import Path

from legato_engine.errors import MissingTensor, ModelNotFound, UnsupportedFormat, UnsupportedModel, WrongShape
from legato_engine.models.checkpoint import Checkpoint, Packed4
from legato_engine.models.config import ModelConfig
from legato_engine.models.gguf import GgufFile
from legato_engine.models.huggingface import HuggingFaceFolder

# Tied embeddings stored twice, and a constant that old files hold: no part of the computation.
_UNUSED = ("lm_head.weight", ".rotary_emb.inv_freq")

__all__ = ["Checkpoint", "Packed4", "expected_shapes", "open"]


def open(path: Path | str) -> Checkpoint:
    """The weights in a GGUF file or a Hugging Face folder, complete and of the shapes that their config asks for.

    Reads headers only; the tensors are mapped. Raises ModelError: ModelNotFound, CorruptModel, UnsupportedModel,
    UnsupportedFormat, MissingTensor or WrongShape.
    """
    path = Path(path)
    checkpoint = _open(path)
    expected, names = dict(expected_shapes(checkpoint.config)), checkpoint.names()
    for name, shape in expected.items():
        if name not in names:
            raise MissingTensor(f"{path}: tensor {name} of shape {list(shape)} is missing")
        if checkpoint.shape(name) != shape:
            found = list(checkpoint.shape(name))
            raise WrongShape(f"{path}: tensor {name} has shape {found}; the model's config asks for {list(shape)}")
    for name in sorted(names - expected.keys()):
        if not name.endswith(_UNUSED):
            raise UnsupportedModel(f"{path}: tensor {name} has no place in a {checkpoint.config.architecture}")
    return checkpoint


def _open(path: Path) -> Checkpoint:
    if path.is_dir():
        return HuggingFaceFolder(path)
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file or folder")
    if path.suffix == ".safetensors":
        raise UnsupportedFormat(f"{path}: give the folder that holds this file and its config.json")
    return GgufFile(path)


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors that a Llama-family model of this config is computed from."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield "model.embed_tokens.weight", (vocab, hidden)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (vocab, hidden)
    for layer in range(config.layers):
        for name, shape in _layer_shapes(config):
            yield f"model.layers.{layer}.{name}", shape


def _layer_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield "input_layernorm.weight", (hidden,)
    yield "post_attention_layernorm.weight", (hidden,)
    attention = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
    for part, shape in attention.items():
        yield f"self_attn.{part}_proj.weight", shape
        if config.attention_bias:
            yield f"self_attn.{part}_proj.bias", shape[:1]
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    for part, shape in mlp.items():
        yield f"mlp.{part}_proj.weight", shape
        if config.mlp_bias:
            yield f"mlp.{part}_proj.bias", shape[:1]
