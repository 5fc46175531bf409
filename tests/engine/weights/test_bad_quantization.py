"""Quantized Hugging Face folders that are not supported or corrupt are refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quantized_folders as folders
import torch
from quantized_folders import KINDS, UP, Kind, Tensors, edit, put

from legato_engine import errors
from legato_engine.weights.opening import open_weights

DOWN = "model.layers.0.mlp.down_proj"
NAN, INF = float("nan"), float("inf")


def group(**changes: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"]} | changes}}


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
REFUSED = [
    ("gptq", {"quant_method": "bitsandbytes"}, "'bitsandbytes' is not supported; supported: fp8, modelopt, mxfp4"),
    ("gptq", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo is 'NVFP4'; supported: 'FP8', 'FP8_PER"),
    ("gptq", {"quant_method": None}, "None is not supported; supported: fp8"),
    ("gptq", {"bits": 3}, "bits is 3; supported: 4, 8"),
    ("gptq", {"bits": True}, "bits is True"),
    ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; supported: 'gptq', 'gptq_v2'"),
    ("gptq", {"is_marlin_format": True}, "is_marlin_format is True"),
    ("gptq", {"dynamic": {"+:.*": {"bits": 2}}}, r"dynamic: \+:\.\*: bits is 2; supported: 4, 8"),
    ("awq", {"bits": 8}, "bits is 8; supported: 4"),
    ("awq", {"version": "gemv"}, "version is 'gemv'; supported: 'gemm'"),
    ("awq", {"version": None, "format": "llm-awq"}, "format is 'llm-awq'; supported: 'gemm'"),
    ("fp8, blocks", {"fmt": "e5m2"}, "fmt is 'e5m2'; supported: 'e4m3'"),
    ("fp8, blocks", {"activation_scheme": "token"}, "activation_scheme is 'token'; supported: 'dynamic', 'static'"),
    ("int-quantized", {"format": "nvfp4-pack-quantized"}, "'nvfp4-pack-quantized'; supported: 'float-quantized'"),
    ("int-quantized", {"transform_config": {"config_groups": {"u": {}}}}, "transform_config.*supported: none"),
    ("int-quantized", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask.*supported: 'dense'"),
    ("pack-quantized W4A16", group(weights=W4 | {"num_bits": 2}), "group_0: weights: num_bits is 2; supported: 4, 8"),
    ("pack-quantized W4A16", group(weights=W4 | {"strategy": "tensor_group"}), "strategy is 'tensor_group'"),
    ("pack-quantized W4A16", group(weights=W4 | {"dynamic": True}), "dynamic is True; supported: False"),
    ("pack-quantized W4A16", group(weights=W4, input_activations={"num_bits": 4}), "num_bits is 4; supported: 8"),
    ("pack-quantized W4A16", group(weights=None), "weights is missing"),
    (folders.FP4, group(weights=W4), "type is 'int'; supported: 'float'"),
    (folders.FP4, group(weights=W4 | {"type": "float", "group_size": 16}), "group_size is 16; supported: 32"),
]


@pytest.mark.parametrize(("name", "config", "text"), REFUSED)
def test_other_formats_are_refused_with_the_supported_ones(
    tmp_path: Path, name: str, config: dict[str, Any], text: str
) -> None:
    folders.write(tmp_path, KINDS[name], config=config)
    with pytest.raises(errors.UnsupportedFormat, match=text) as caught:
        open_weights(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


CORRUPT = [
    ("gptq", {"group_size": 96}, rf"tensor {DOWN}\.qweight: groups of 96 do not divide 512 inputs; a divisor, or -1"),
    ("gptq", {"group_size": 0}, "group_size is 0; a whole number above 0, or -1, is needed"),
    ("gptq", {"dynamic": {"-:(": {}}}, r"the pattern 're:\(' is wrong"),
    ("gptq", {"dynamic": {"+:.*": [8]}}, r"dynamic: \+:\.\* is \[8\]; an object is needed"),
    ("gptq", {"dynamic": {r"-:.*up_proj": {}}}, "up_proj is quantized, although quantization_config excludes it"),
    ("int-quantized", {"ignore": ["re:.*up_proj"]}, "up_proj is quantized, although quantization_config excludes it"),
    ("int-quantized", {"config_groups": {}}, "config_groups is missing"),
    ("int-quantized", {"ignore": "lm_head"}, "ignore is 'lm_head'; a list of names is needed"),
    ("fp8, blocks", {"weight_block_size": [128]}, r"weight_block_size is \[128\]; two whole numbers"),
]


@pytest.mark.parametrize(("name", "config", "text"), CORRUPT)
def test_a_config_that_contradicts_itself_is_refused(
    tmp_path: Path, name: str, config: dict[str, Any], text: str
) -> None:
    folders.write(tmp_path, KINDS[name], config=config)
    with pytest.raises(errors.CorruptModel, match=text):
        open_weights(tmp_path)


def without(part: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[f"{UP}.{part}"]

    return change


def code(value: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[f"{UP}.weight"].view(torch.uint8)[1, 1] = value

    return change


BAD_TENSORS = [
    ("fp8, blocks", without("weight_scale_inv"), errors.MissingTensor, r"weight_scale is missing.*128×128"),
    ("gptq", without("scales"), errors.MissingTensor, "scales is missing"),
    ("gptq", without("qzeros"), errors.MissingTensor, "qzeros is missing"),
    ("gptq, act order", without("g_idx"), errors.MissingTensor, "g_idx is missing"),
    ("awq", without("scales"), errors.MissingTensor, "scales is missing"),
    ("pack-quantized W4A16", without("weight_scale"), errors.MissingTensor, "weight_scale is missing"),
    ("pack-quantized W4A16, asymmetric", without("weight_zero_point"), errors.MissingTensor, "weight_zero_point"),
    ("fp8, blocks", put("weight_scale_inv", torch.ones(4, 4)), errors.WrongShape, r"\[4, 4\].*requires \[4, 2\]"),
    ("int-quantized", put("weight_scale", torch.ones(7)), errors.WrongShape, r"\[7\].*requires \[512, 1\] or \[512\]"),
    ("gptq", put("scales", torch.ones(512, 2)), errors.WrongShape, r"\[512, 2\].*requires \[2, 512\]"),
    (folders.FP4, put("weight_scale", torch.ones(512, 4).byte()), errors.WrongShape, r"requires \[512, 8\]"),
    ("gptq", put("g_idx", torch.zeros(5).int()), errors.WrongShape, r"\[5\].*requires \[256\]"),
    ("awq", put("qzeros", torch.zeros(2, 512).int()), errors.WrongShape, r"\[2, 512\].*requires \[2, 64\]"),
    ("pack-quantized W4A16", put("weight_shape", torch.tensor([512, 255])), errors.WrongShape, r"is \[512, 255\]"),
    ("gptq", put("qweight", torch.zeros(512).int()), errors.WrongShape, r"has shape \[512\]; two dimensions"),
    ("awq", put("qweight", torch.zeros(0, 64).int()), errors.WrongShape, r"\[0, 64\]; two dimensions above 0"),
    ("fp8, blocks", put("weight", torch.tensor(1.0).to(folders.FLOAT8)), errors.WrongShape, r"\[\]; two dimensions"),
    ("awq", put("qweight", torch.zeros(256, 63).int()), errors.WrongShape, r"scales has shape .*requires \[2, 504\]"),
    ("gptq", put("qweight", torch.ones(8, 8)), errors.UnsupportedFormat, "qweight has type F32; supported: I32"),
    ("fp8, blocks", put("weight", torch.ones(512, 256).to(torch.float8_e5m2)), errors.UnsupportedFormat, "F8_E4M3"),
    ("fp8, blocks", put("weight_scale_inv", torch.ones(4, 2).double()), errors.UnsupportedFormat, "F64.*BF16"),
    ("awq", put("lora_A", torch.ones(1)), errors.UnsupportedModel, "lora_A has no place"),
]


@pytest.mark.parametrize(("name", "change", "kind", "text"), BAD_TENSORS)
def test_bad_tensors_are_refused_before_weights_are_read(
    tmp_path: Path, name: str, change: Callable[[Tensors], None], kind: type[errors.ModelError], text: str
) -> None:
    folders.write(tmp_path, KINDS[name], change=change)
    with pytest.raises(kind, match=text) as caught:
        open_weights(tmp_path)
    assert f"tensor {UP}." in str(caught.value)


BAD_SCALES = [
    ("fp8, blocks", edit("weight_scale_inv", NAN), "weight_scale_inv: a scale is nan; finite ones of at least 0"),
    ("fp8, blocks", edit("weight_scale_inv", -0.1, 3), r"a scale is -0\.1"),
    ("int-quantized", edit("weight_scale", -1.0, 5), "a scale is -1"),
    ("fp8, tensor, static", edit("weight_scale", 0.0), "weight_scale: all scales are 0; the file may be incomplete"),
    ("gptq", edit("scales", INF, 9), "scales: a scale is inf; finite ones are needed"),
    ("awq", edit("scales", NAN, 9), "scales: a scale is nan"),
    ("pack-quantized W4A16, bfloat16", edit("weight_scale", INF), "weight_scale: a scale is inf"),
    (folders.FP4, edit("weight_scale", 255, 9), "weight_scale: a scale is NaN; finite ones are needed"),
    ("gptq, act order", edit("g_idx", 2, 7), r"up_proj\.g_idx: a group is 2; 0 … 1 are allowed"),
    ("pack-quantized W4A16, act order", edit("weight_g_idx", -1, 7), r"weight_g_idx: a group is -1; 0 … 1 are"),
]


@pytest.mark.parametrize(("name", "change", "text"), BAD_SCALES)
def test_corrupt_scales_are_refused_before_codes_are_read(
    tmp_path: Path, name: str, change: Callable[[Tensors], None], text: str
) -> None:
    """A worker's memory is worked out first, and that reads all scales."""
    folders.write(tmp_path, KINDS[name], change=change)
    checkpoint = open_weights(tmp_path)
    for read in (checkpoint.packed_bits, checkpoint.tensor):
        with pytest.raises(errors.CorruptModel, match=text) as caught:
            read(f"{UP}.weight")
        assert f"tensor {UP}." in str(caught.value)


def test_a_code_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    folders.write(tmp_path, KINDS["fp8, blocks"], change=code(0x7F))
    with pytest.raises(errors.CorruptModel, match=rf"{UP}\.weight: a weight is NaN or infinite"):
        open_weights(tmp_path).tensor(f"{UP}.weight")


EXPERTS = "model.layers.1.mlp.experts.gate_up_proj"
BAD_EXPERTS = [
    (f"{EXPERTS}_scales", None, errors.MissingTensor, "is missing; MXFP4 needs it"),
    (f"{EXPERTS}_scales", torch.zeros(6, 192, 3).byte(), errors.WrongShape, r"\[6, 192, 3\]; .* \[6, 192, 2\]"),
    (f"{EXPERTS}_scales", torch.ones(6, 192, 2), errors.UnsupportedFormat, "has type F32; supported: U8"),
    (f"{EXPERTS}_blocks", torch.zeros(6, 192, 32).byte(), errors.WrongShape, "experts, outputs, groups and 16 bytes"),
    (f"{EXPERTS}_blocks", None, errors.MissingTensor, "gate_up_proj_blocks is missing; MXFP4 needs it"),
    (f"{EXPERTS}_bias", torch.zeros(6, 190), errors.WrongShape, r"has shape \[95\]; .* requires \[96\]"),
    (f"{EXPERTS}_bias", torch.zeros(192), errors.WrongShape, r"has shape \[192\]; 2 dimensions are needed"),
    (f"{EXPERTS}_bias", torch.zeros(5, 192), errors.MissingTensor, r"experts\.5\..*bias of shape \[96\] is missing"),
    (f"{EXPERTS}_bias", torch.zeros(7, 192), errors.UnsupportedModel, r"experts\.6\.gate_proj\.bias has no place"),
    ("model.layers.0.self_attn.sinks", torch.zeros(2), errors.WrongShape, r"sinks has shape \[2\]; .* requires \[4\]"),
    ("model.layers.0.self_attn.sinks", None, errors.MissingTensor, r"sinks of shape \[4\] is missing"),
]


@pytest.mark.parametrize(("name", "tensor", "kind", "text"), BAD_EXPERTS)
def test_bad_tensors_of_gpt_oss_are_refused_before_weights_are_read(
    tmp_path: Path, name: str, tensor: torch.Tensor | None, kind: type[errors.ModelError], text: str
) -> None:
    def change(tensors: Tensors) -> None:
        tensors.pop(name)
        if tensor is not None:
            tensors[name] = tensor

    folders.write_gpt_oss(tmp_path, change)
    with pytest.raises(kind, match=text):
        open_weights(tmp_path)


@pytest.mark.parametrize(("value", "text"), [(255, "a scale is NaN; finite ones"), (0, "all scales are 2\\^-127")])
def test_corrupt_scales_of_experts_are_refused_by_their_tensor(tmp_path: Path, value: int, text: str) -> None:
    def change(tensors: Tensors) -> None:
        place = (3, slice(0, 1 if value else None))
        tensors[f"{EXPERTS}_scales"][place] = value

    folders.write_gpt_oss(tmp_path, change)
    checkpoint = open_weights(tmp_path)
    for read in (checkpoint.packed_bits, checkpoint.tensor, checkpoint.grouped_form):
        with pytest.raises(errors.CorruptModel, match=rf"tensor {EXPERTS}_scales, expert 3: {text}"):
            read("model.layers.1.mlp.experts.3.gate_proj.weight")
    checkpoint.tensor("model.layers.1.mlp.experts.2.gate_proj.weight")


def test_quantized_tensors_need_a_quantization_config(tmp_path: Path) -> None:
    folders.write(tmp_path, Kind({}, KINDS["fp8, blocks"].pack))
    with pytest.raises(errors.UnsupportedFormat, match="has type F8_E4M3; supported: F32, F16, BF16"):
        open_weights(tmp_path)
