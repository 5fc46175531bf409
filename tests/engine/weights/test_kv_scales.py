"""Scales of KV in e4m3 are read from checkpoints of all tools, and bad ones are refused by name."""

from pathlib import Path
from typing import Any

import pytest
import quantized_folders as folders
import torch
from quantized_folders import KINDS

from legato_engine import errors
from legato_engine.weights import kv_scales
from legato_engine.weights.opening import open_weights


@pytest.mark.parametrize(
    ("scales", "keys", "values"),
    [
        ({}, [1, 1], [1, 1]),
        ({"k_scale": 2.0, "v_scale": 0.5}, [2, 2], [0.5, 0.5]),
        (
            {"k_proj.k_scale": [[[3.0]], [[4.0]]], "v_proj.v_scale": [0.25], "k_proj.output_scale": 9.0},
            [3, 4],
            [0.25] * 2,
        ),
        ({"kv_scale": 0.125}, [0.125] * 2, [0.125] * 2),
    ],
    ids=["none", "one of each", "of heads and of projections", "one for both"],
)
def test_scales_of_kv(tmp_path: Path, scales: dict[str, Any], keys: list[float], values: list[float]) -> None:
    """As each tool names and shapes them. Scales of activations are not read."""
    layers = [f"model.layers.{layer}.self_attn" for layer in range(2)]
    given = {f"{layer}.{name}": torch.tensor(value) for layer in layers for name, value in scales.items()}
    folders.write(tmp_path, KINDS["fp8, tensor, static"], change=lambda tensors: tensors.update(given))
    found = kv_scales.read(open_weights(tmp_path))
    assert found.tolist() == [[keys, values]] * 2


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor([1.0, torch.nan]), r"layers\.1\.self_attn\.k_scale is \[1.0, nan\]; finite numbers above 0"),
        (torch.tensor(0.0), r"k_scale is \[0.0\]; finite numbers above 0"),
        (torch.ones(3), r"k_scale has shape \(3,\); one scale, or one for each of 2 KV heads"),
        (None, r"layers\.1\.self_attn\.k_scale is missing; scales of KV are needed for all layers or none"),
    ],
)
def test_bad_scales_of_kv_are_refused(tmp_path: Path, scale: torch.Tensor | None, message: str) -> None:
    names = [f"model.layers.{layer}.self_attn.{which}_scale" for layer in range(2) for which in "kv"]
    given = {name: torch.ones(1) for name in names}
    del given[names[2]]
    if scale is not None:
        given[names[2]] = scale
    folders.write(tmp_path, KINDS["fp8, tensor, static"], change=lambda tensors: tensors.update(given))
    with pytest.raises(errors.CorruptModel, match=message):
        kv_scales.read(open_weights(tmp_path))
