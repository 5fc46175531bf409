"""Weights in floating point are rounded while they are loaded: `engine.quantization`."""

from collections.abc import Callable
from pathlib import Path

import packed_weights
import pytest
import quantized_folders as folders
import torch
from quantized_folders import KINDS, UP, Kind, Tensors, edit

from legato_engine import errors
from legato_engine.weights.opening import open_weights

ROUNDED = {"FP8": KINDS["float-quantized, channel"], "Int8": KINDS["int-quantized"]}  # the same formats in files


ZEROS = "model.layers.1.mlp.experts.3.up_proj.weight"


def plain(path: Path, kind: Kind, change: Callable[[Tensors], None], architecture: str) -> Tensors:
    return folders.write(path, Kind({}, kind.pack), keep=lambda module: True, change=change, architecture=architecture)


@pytest.mark.parametrize("name", ROUNDED)
def test_weights_are_rounded_while_loading_as_tools_round_them(tmp_path: Path, name: str) -> None:
    """Embeddings, the output head, routers and norms are not."""
    zeros = {ZEROS: torch.zeros(256, 256)}
    given = plain(tmp_path, ROUNDED[name], lambda tensors: tensors.update(zeros), "Qwen2MoeForCausalLM") | zeros
    checkpoint, original = open_weights(tmp_path, name), open_weights(tmp_path)
    assert checkpoint.quantized() == {each for each in given if each.endswith("_proj.weight")}
    assert checkpoint.names() == original.names()
    assert checkpoint.fingerprint != original.fingerprint
    for each, weight in given.items():
        linear = each in checkpoint.quantized() and bool(weight.any())
        differing = checkpoint.tensor(each) != (ROUNDED[name].pack(weight).values if linear else weight)
        assert differing.float().mean() < (1e-4 if linear and name == "Int8" else 1e-9)  # halves are rounded either way
        bits = 8.5 if name == "Int8" and each in checkpoint.quantized() else None
        assert checkpoint.packed_bits(each) == bits
        packed = checkpoint.packed(each)
        assert (packed is None) == (bits is None)
        assert packed is None or torch.equal(packed.floats(), checkpoint.tensor(each))
        assert (packed_weights.grouped(checkpoint, each) is None) == (each not in checkpoint.quantized())


def test_only_finite_weights_that_are_not_quantized_are_rounded(tmp_path: Path) -> None:
    plain(tmp_path, KINDS["gptq"], edit("weight", float("nan"), 300), "LlamaForCausalLM")
    with pytest.raises(errors.CorruptModel, match=rf"{UP}\.weight: a weight is NaN or infinite"):
        open_weights(tmp_path, "FP8").tensor(f"{UP}.weight")
    folders.write(tmp_path, KINDS["gptq"])
    with pytest.raises(errors.UnsupportedFormat, match=r"engine\.quantization is FP8, but .* already: gptq \(4-bit"):
        open_weights(tmp_path, "FP8")
