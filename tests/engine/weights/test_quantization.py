"""Quantized Hugging Face folders: values and codes are those that were packed."""

import json
from pathlib import Path
from typing import Any

import packed_weights
import pytest
import quantized_folders as folders
import torch
import transformers
from huggingface_oracle import fused_experts
from quantized_folders import KINDS, UP, Kind, Tensors, put

from legato_engine import errors
from legato_engine.weights.grouped import GroupedForm
from legato_engine.weights.opening import open_weights
from legato_engine.weights.quantization.formats import Element

DOWN = "model.layers.0.mlp.down_proj"
FOUR_BITS, EIGHT_BITS = 5.0, 8.5  # with scales, for 32 inputs each
KEPT = {  # bits per value of codes that CPU kernels take; the others are dequantized
    "int-quantized": EIGHT_BITS,
    "pack-quantized W4A16": FOUR_BITS,
    "pack-quantized W4A16, bfloat16": FOUR_BITS,
    "pack-quantized W4A16, asymmetric": EIGHT_BITS,
    "pack-quantized W4A16, channel": FOUR_BITS,
    "pack-quantized W8A16": EIGHT_BITS,
    "mxfp4-pack-quantized": EIGHT_BITS,
    "gptq": FOUR_BITS,
    "gptq, asymmetric": EIGHT_BITS,
    "gptq, v2": EIGHT_BITS,
    "gptq, channel": FOUR_BITS,
    "gptq, 8 bits": EIGHT_BITS,
    "awq": EIGHT_BITS,
}


@pytest.mark.parametrize("name", KINDS)
def test_values_and_codes_are_those_that_were_packed(tmp_path: Path, name: str) -> None:
    values = folders.write(tmp_path, KINDS[name])
    checkpoint = open_weights(tmp_path)
    assert checkpoint.names() == values.keys()
    assert all(checkpoint.shape(each) == tuple(value.shape) for each, value in values.items())
    assert all(torch.equal(checkpoint.tensor(each), value) for each, value in values.items())
    halves = torch.empty(values[f"{UP}.weight"].shape, dtype=torch.bfloat16)
    checkpoint.read(f"{UP}.weight", halves)
    assert torch.equal(halves, values[f"{UP}.weight"].bfloat16())

    assert checkpoint.quantized() == {each for each in values if "_proj." in each}
    for each in checkpoint.quantized():
        packed = checkpoint.packed(each)
        assert checkpoint.packed_bits(each) == KEPT.get(name)
        assert (packed is None) == (name not in KEPT)
        if packed is not None:
            assert torch.equal(packed.floats(), values[each])
            parts = [scales.values for scales in (packed.scale, packed.minimum) if scales is not None]
            assert KEPT[name] == packed.bits + sum(8 * part.nbytes for part in parts) / packed.codes.numel()
        grouped, form = packed_weights.grouped(checkpoint, each), checkpoint.grouped_form(each)
        assert grouped is not None
        assert form is not None
        assert torch.equal(grouped.floats(), values[each])
        assert (form.element, form.group, form.bits) == (grouped.element, grouped.group, grouped.bits)
        assert (grouped.order is not None) == ("act order" in name)
    packed_weights.check_parts(checkpoint, f"{DOWN}.weight")


def test_mxfp4_is_read_as_llm_compressor_writes_it(tmp_path: Path) -> None:
    """A group as that tool rounded it. Its scheme `MXFP4` also rounds activations, which keep 16 bits here."""
    kind = KINDS[folders.FP4]
    scheme = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True}

    def change(tensors: Tensors) -> None:
        written = bytes.fromhex("2299a3ca383d51e930abc92519a21d04")
        tensors[f"{UP}.weight_packed"][0, :16] = torch.tensor([*written], dtype=torch.uint8)
        tensors[f"{UP}.weight_scale"][0, 0] = 123

    groups = {"group_0": kind.config["config_groups"]["group_0"] | {"input_activations": scheme}}
    folders.write(tmp_path, kind, change=change, config={"config_groups": groups})

    checkpoint = open_weights(tmp_path)

    assert "for dynamic activations" in checkpoint.quantization
    assert (16 * checkpoint.tensor(f"{UP}.weight")[0, :32]).tolist() == [
        1, 1, -0.5, -0.5, 1.5, -1, -1, -2, 0, 1.5, -3, 1.5, 0.5, 3, -0.5, -4,
        0, 1.5, -1.5, -1, -0.5, -2, 3, 1, -0.5, 0.5, 1, -1, -3, 0.5, 2, 0,
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["fp8, blocks", "pack-quantized W4A16", "gptq, act order", "awq"])
def test_fused_projections_are_weights_like_others(tmp_path: Path, name: str) -> None:
    values = folders.write(tmp_path, KINDS[name], architecture="Phi3ForCausalLM")
    checkpoint = open_weights(tmp_path)
    assert all(torch.equal(checkpoint.tensor(each), value) for each, value in values.items())
    assert {
        f"model.layers.0.{part}.weight" for part in ("self_attn.qkv_proj", "mlp.gate_up_proj")
    } < checkpoint.quantized()


def test_scales_beyond_float16_are_not_codes(tmp_path: Path) -> None:
    """Four bits have a minimum of -8 times the scale."""
    for name, size in (("gptq", 9000.0), ("pack-quantized W4A16, bfloat16", 1e-9)):

        def change(tensors: Tensors, size: float = size) -> None:
            for part in ("scales", "weight_scale"):
                if f"{UP}.{part}" in tensors:
                    tensors[f"{UP}.{part}"].view(-1)[3] = size

        folders.write(tmp_path, KINDS[name], change=change)
        checkpoint = open_weights(tmp_path)
        packed = checkpoint.packed(f"{UP}.weight")
        assert packed is None or torch.equal(packed.floats(), checkpoint.tensor(f"{UP}.weight"))
        assert checkpoint.packed_bits(f"{UP}.weight") == (EIGHT_BITS if packed else None)
        assert checkpoint.packed_bits(f"{DOWN}.weight") == FOUR_BITS


MIXED = [
    ("fp8, blocks", {"modules_to_not_convert": ["model.layers.0"]}),
    ("fp8, tensor, static", {"ignored_layers": ["model.layers.0"]}),
    ("awq", {"modules_to_not_convert": ["model.layers.0"]}),
    ("gptq", {"dynamic": {r"-:model\.layers\.0\..*": {}}}),
    ("pack-quantized W4A16", {"ignore": ["lm_head", r"re:.*layers\.0\..*"]}),
    ("int-quantized", {"ignore": [f"model.layers.0.{part}" for part in (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
        "mlp.up_proj", "mlp.down_proj")]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config"), MIXED)
def test_layers_may_be_left_unquantized(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    values = folders.write(tmp_path, KINDS[name], keep=lambda module: "layers.0." in module, config=config)
    checkpoint = open_weights(tmp_path)
    assert all(torch.equal(checkpoint.tensor(each), value) for each, value in values.items())
    assert checkpoint.quantized() == {each for each in values if "_proj." in each and "layers.1." in each}


BLOCKS = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": "128x128"}
SPELLINGS = [
    ("float-quantized, block", {"config_groups": {"group_0": {"targets": ["Linear"], "weights": BLOCKS}}}),
    ("float-quantized, tensor", {"format": "naive-quantized"}),
    ("int-quantized", {"format": "naive-quantized"}),
    ("awq", {"version": "GEMM"}),
    ("awq", {"version": None, "format": "gemm", "backend": "torch_awq"}),
    ("awq", {"zero_point": False}),
    ("fp8, tensor, static", {"quant_method": "modelopt", "quant_algo": "FP8"}),
    ("float-quantized, channel", {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}),
    ("gptq, act order", {"static_groups": True}),
    ("gptq", {"checkpoint_format": None, "format": "gptq", "dynamic": {"+:.*": None}}),
    ("fp8, blocks", {"scale_fmt": "ue8m0", "modules_to_not_convert": None}),
]


@pytest.mark.parametrize(("name", "config"), SPELLINGS)
def test_configs_of_other_versions_of_a_tool_mean_the_same(tmp_path: Path, name: str, config: dict[str, Any]) -> None:
    values = folders.write(tmp_path, KINDS[name], config=config)
    assert torch.equal(open_weights(tmp_path).tensor(f"{UP}.weight"), values[f"{UP}.weight"])


def test_an_early_key_of_compressed_tensors_is_read(tmp_path: Path) -> None:
    values = folders.write(tmp_path, KINDS["int-quantized"])
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace("quantization_config", "compression_config"))
    assert torch.equal(open_weights(tmp_path).tensor(f"{UP}.weight"), values[f"{UP}.weight"])


def test_early_files_of_model_optimizer_have_a_config_of_their_own(tmp_path: Path) -> None:
    values = folders.write(tmp_path, Kind({}, KINDS["fp8, tensor, static"].pack))
    own = tmp_path / "hf_quant_config.json"
    own.write_text('{"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}')
    assert torch.equal(open_weights(tmp_path).tensor(f"{UP}.weight"), values[f"{UP}.weight"])
    own.write_text('{"quantization": {"quant_algo": "W4A8_AWQ"}}')
    with pytest.raises(errors.UnsupportedFormat, match=r"hf_quant_config\.json: .*'W4A8_AWQ'; supported: 'FP8'"):
        open_weights(tmp_path)


def test_scales_of_blocks_may_be_powers_of_two(tmp_path: Path) -> None:
    values, powers = [], 2.0 ** torch.arange(-8, 0).view(4, 2)
    for scales in (powers, powers.to(torch.float8_e8m0fnu)):
        folders.write(tmp_path, KINDS["fp8, blocks"], change=put("weight_scale_inv", scales))
        values.append(open_weights(tmp_path).tensor(f"{UP}.weight"))
    assert torch.equal(*values)


def test_only_kv_may_have_a_format(tmp_path: Path) -> None:
    config = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": {"num_bits": 8}}
    values = folders.write(tmp_path, Kind(config, KINDS["awq"].pack), keep=lambda module: True)
    checkpoint = open_weights(tmp_path)
    assert checkpoint.quantized() == frozenset()
    assert all(torch.equal(checkpoint.tensor(each), value) for each, value in values.items())


def test_layers_may_have_formats_of_their_own(tmp_path: Path) -> None:
    """GPTQModel's `dynamic`, and groups of compressed-tensors, where a pattern comes before a class."""
    eight, four = KINDS["gptq, 8 bits"], KINDS["gptq"]

    def pack_by(four: Kind, eight: Kind) -> Kind:
        sizes = iter([*[8] * 7, *[4] * 7])
        return Kind(four.config, lambda weight: (eight if next(sizes) == 8 else four).pack(weight))

    dynamic = {r"+:model\.layers\.0\..*": {"bits": 8, "group_size": 64}}
    values = folders.write(tmp_path, pack_by(four, eight), config={"dynamic": dynamic})
    checkpoint = open_weights(tmp_path)
    assert all(torch.equal(checkpoint.tensor(each), value) for each, value in values.items())

    one, two = KINDS["pack-quantized W4A16"], KINDS["float-quantized, channel"]
    groups = {
        "group_0": one.config["config_groups"]["group_0"] | {"format": "pack-quantized"},
        "group_1": two.config["config_groups"]["group_0"]
        | {"targets": [r"re:.*layers\.0\..*"], "format": "float-quantized"},
    }
    values = folders.write(tmp_path, pack_by(one, two), config={"format": "mixed-precision", "config_groups": groups})
    checkpoint = open_weights(tmp_path)
    assert all(torch.equal(checkpoint.tensor(each), value) for each, value in values.items())


@pytest.mark.parametrize("named", ["language_model.model.", "model.language_model."])
def test_layers_of_a_multimodal_model_are_named_as_in_the_whole(tmp_path: Path, named: str) -> None:
    kind, stored = KINDS["pack-quantized W4A16"], "language_model.model."

    def rename(tensors: Tensors) -> None:
        for name in [*tensors]:
            tensors[name.replace("model.", stored, 1)] = tensors.pop(name)

    groups = {"group_0": kind.config["config_groups"]["group_0"] | {"targets": [f"re:{named}layers.*_proj"]}}
    values = folders.write(
        tmp_path, kind, architecture="Gemma3ForCausalLM", change=rename, config={"config_groups": groups}
    )
    raw = json.loads((tmp_path / "config.json").read_text())
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": raw}
    whole["quantization_config"] = raw.pop("quantization_config")
    (tmp_path / "config.json").write_text(json.dumps(whole))

    checkpoint = open_weights(tmp_path)

    assert all(torch.equal(checkpoint.tensor(each), value) for each, value in values.items())


def test_experts_in_blocks_are_those_that_transformers_dequantizes(tmp_path: Path) -> None:
    values = folders.write_gpt_oss(tmp_path)
    checkpoint = open_weights(tmp_path)
    assert checkpoint.names() == values.keys()
    assert all(torch.equal(checkpoint.tensor(each), value) for each, value in values.items())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, quantization_config=transformers.Mxfp4Config(dequantize=True)
    ).state_dict()
    fused = fused_experts({each: checkpoint.tensor(each) for each in checkpoint.names()})
    assert fused.keys() == theirs.keys()
    assert all(torch.equal(fused[each], value) for each, value in theirs.items())

    assert checkpoint.quantized() == {each for each in values if ".experts." in each and each.endswith(".weight")}
    for each in checkpoint.quantized():
        packed, form = checkpoint.packed(each), checkpoint.grouped_form(each)
        grouped = packed_weights.grouped(checkpoint, each)
        assert packed is not None
        assert grouped is not None
        assert torch.equal(packed.floats(), values[each])
        assert torch.equal(grouped.floats(), values[each])
        assert form == GroupedForm(Element.FLOAT4, 32, grouped.bits)
        assert (checkpoint.packed_bits(each), grouped.bits) == (EIGHT_BITS, 4.25)


def test_the_fingerprint_covers_the_quantization(tmp_path: Path) -> None:
    """The same tensors have other values by another version of gptq."""
    folders.write(tmp_path, KINDS["gptq"])
    one = open_weights(tmp_path)
    folders.write(tmp_path, KINDS["gptq"], config={"checkpoint_format": "gptq_v2"})
    two = open_weights(tmp_path)
    assert one.fingerprint != two.fingerprint
    assert not torch.equal(one.tensor(f"{UP}.weight"), two.tensor(f"{UP}.weight"))


def test_a_bias_of_zeros_that_the_architecture_lacks_is_ignored(tmp_path: Path) -> None:
    folders.write(tmp_path, KINDS["gptq"], change=put("bias", torch.zeros(512).half()))
    assert f"{UP}.bias" not in open_weights(tmp_path).names()
    folders.write(tmp_path, KINDS["gptq"], change=put("bias", torch.ones(512).half()))
    with pytest.raises(errors.UnsupportedModel, match=rf"{UP}\.bias has no place"):
        open_weights(tmp_path)
