"""LoRA adapters as PEFT saves them, with random matrices; and a model's weights with one merged into them."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tiny_models import RandomCheckpoint, Tensors

from legato_engine.models.config import ModelConfig
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import projections

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write(
    folder: Path,
    model: ModelConfig,
    *,
    seed: int = 0,
    rank: int = 4,
    targets: tuple[str, ...] = ALL,
    change: Callable[[Tensors], None] = lambda tensors: None,
    dtype: torch.dtype = torch.float32,
    **config: object,
) -> Path:
    """`change` edits the tensors before they are saved, `config` what adapter_config.json says."""
    draw = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for name, (outputs, inputs) in projections(model).items():
        if name.endswith(targets):
            prefix = f"base_model.model.{name}.lora_"
            tensors[f"{prefix}A.weight"] = (torch.randn(rank, inputs, generator=draw) * 0.2).to(dtype)
            tensors[f"{prefix}B.weight"] = (torch.randn(outputs, rank, generator=draw) * 0.2).to(dtype)
    change(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": list(targets), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(said | config))
    return folder


def merged(model: ModelConfig, folder: Path, scale: float = 2.0, base: Checkpoint | None = None) -> RandomCheckpoint:
    """The random model of this config, with W + scale · B A for each W that the adapter has matrices for. `base` has
    other W."""
    lora = load_file(folder / "adapter_model.safetensors")

    def merge(tensors: Tensors) -> None:
        for name in projections(model):
            if base is not None:
                tensors[f"{name}.weight"] = base.tensor(f"{name}.weight")
            prefix = f"base_model.model.{name}.lora_"
            if f"{prefix}A.weight" in lora:
                product = lora[f"{prefix}B.weight"].double() @ lora[f"{prefix}A.weight"].double()
                tensors[f"{name}.weight"] = (tensors[f"{name}.weight"].double() + scale * product).float()

    return RandomCheckpoint(model, merge)
