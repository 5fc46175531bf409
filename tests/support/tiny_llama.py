"""A Llama of two small layers, as a folder of Hugging Face's, with random weights."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tiny_models import RandomCheckpoint

from legato_engine.models.config import ModelConfig, from_huggingface

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


def config(**changes: Any) -> ModelConfig:
    """As the engine reads it, with other values of `config.json`."""
    return from_huggingface(CONFIG | changes, "here")


def write(folder: Path, **changes: Any) -> None:
    """Its `config.json`, with other values, and weights of those shapes."""
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    weights = RandomCheckpoint(config(**changes))
    save_file({name: weights.tensor(name) for name in weights.names()}, folder / "model.safetensors")
