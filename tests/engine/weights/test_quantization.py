"""Quantized Hugging Face folders: values and codes are those that were packed, and bad ones are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import quantized_folders as folders
import torch
from quantized_folders import KINDS, Kind, Tensors

from legato_engine import errors
from legato_engine.weights import kv_scales
from legato_engine.weights.opening import open_weights

UP = "model.layers.1.mlp.up_proj"
DOWN = "model.layers.0.mlp.down_proj"
FOUR_BITS, EIGHT_BITS = 5.0, 8.5  # with scales, for 32 inputs each
KEPT = {  # bits per value of codes that CPU kernels take; the others are dequantized
    "int-quantized": EIGHT_BITS,
    "pack-quantized W4A16": FOUR_BITS,
    "pack-quantized W4A16, bfloat16": FOUR_BITS,
    "pack-quantized W4A16, asymmetric": EIGHT_BITS,
    "pack-quantized W4A16, channel": FOUR_BITS,
    "pack-quantized W8A16": EIGHT_BITS,
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
        grouped, form = checkpoint.grouped(each), checkpoint.grouped_form(each)
        assert grouped is not None
        assert form is not None
        assert torch.equal(grouped.floats(), values[each])
        assert (form.element, form.group, form.bits) == (grouped.element, grouped.group, grouped.bits)


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


def test_the_fingerprint_covers_the_quantization(tmp_path: Path) -> None:
    """The same tensors have other values by another version of gptq."""
    folders.write(tmp_path, KINDS["gptq"])
    one = open_weights(tmp_path)
    folders.write(tmp_path, KINDS["gptq"], config={"checkpoint_format": "gptq_v2"})
    two = open_weights(tmp_path)
    assert one.fingerprint != two.fingerprint
    assert not torch.equal(one.tensor(f"{UP}.weight"), two.tensor(f"{UP}.weight"))


def test_a_bias_of_zeros_that_the_architecture_lacks_is_ignored(tmp_path: Path) -> None:
    """Early versions of AutoGPTQ wrote them."""
    folders.write(tmp_path, KINDS["gptq"], change=put("bias", torch.zeros(512).half()))
    assert f"{UP}.bias" not in open_weights(tmp_path).names()
    folders.write(tmp_path, KINDS["gptq"], change=put("bias", torch.ones(512).half()))
    with pytest.raises(errors.UnsupportedModel, match=rf"{UP}\.bias has no place"):
        open_weights(tmp_path)


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


# ── engine.quantization ──

ROUNDED = {"FP8": KINDS["float-quantized, channel"], "Int8": KINDS["int-quantized"]}  # the same formats in files


def plain(path: Path, kind: Kind, change: Callable[[Tensors], None] = lambda tensors: None) -> Tensors:
    """Writes a folder without quantized weights."""
    return folders.write(path, Kind({}, kind.pack), keep=lambda module: True, change=change)


@pytest.mark.parametrize("name", ROUNDED)
def test_weights_are_rounded_while_loading_as_tools_round_them(tmp_path: Path, name: str) -> None:
    """Embeddings, the output head and norms are not."""
    given = plain(tmp_path, ROUNDED[name], put("weight", zeros := torch.zeros(512, 256))) | {f"{UP}.weight": zeros}
    checkpoint, original = open_weights(tmp_path, name), open_weights(tmp_path)
    assert checkpoint.quantized() == {each for each in given if "_proj." in each}
    assert checkpoint.names() == original.names()
    assert checkpoint.fingerprint != original.fingerprint
    for each, weight in given.items():
        linear = each in checkpoint.quantized() and bool(weight.any())
        differing = checkpoint.tensor(each) != (ROUNDED[name].pack(weight).values if linear else weight)
        assert differing.float().mean() < (1e-4 if linear and name == "Int8" else 1e-9)  # halves are rounded either way
        bits = EIGHT_BITS if name == "Int8" and each in checkpoint.quantized() else None
        assert checkpoint.packed_bits(each) == bits
        packed = checkpoint.packed(each)
        assert (packed is None) == (bits is None)
        assert packed is None or torch.equal(packed.floats(), checkpoint.tensor(each))


def test_only_finite_weights_that_are_not_quantized_are_rounded(tmp_path: Path) -> None:
    plain(tmp_path, KINDS["gptq"], edit("weight", NAN, 300))
    with pytest.raises(errors.CorruptModel, match=rf"{UP}\.weight: a weight is NaN or infinite"):
        open_weights(tmp_path, "FP8").tensor(f"{UP}.weight")
    folders.write(tmp_path, KINDS["gptq"])
    with pytest.raises(errors.UnsupportedFormat, match=r"engine\.quantization is FP8, but .* already: gptq \(4-bit"):
        open_weights(tmp_path, "FP8")


# ── refusals ──


def group(**changes: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"]} | changes}}


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
REFUSED = [
    ("gptq", {"quant_method": "bitsandbytes"}, "'bitsandbytes' is not supported; supported: fp8, modelopt, compressed"),
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


def put(part: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({f"{UP}.{part}": tensor})


def edit(part: str, value: float, place: int = 0) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[f"{UP}.{part}"].view(-1)[place] = value

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


NAN, INF = float("nan"), float("inf")
BAD_SCALES = [
    ("fp8, blocks", edit("weight_scale_inv", NAN), "weight_scale_inv: a scale is nan; finite ones of at least 0"),
    ("fp8, blocks", edit("weight_scale_inv", -0.1, 3), r"a scale is -0\.1"),
    ("int-quantized", edit("weight_scale", -1.0, 5), "a scale is -1"),
    ("fp8, tensor, static", edit("weight_scale", 0.0), "weight_scale: all scales are 0; the file may be incomplete"),
    ("gptq", edit("scales", INF, 9), "scales: a scale is inf; finite ones are needed"),
    ("awq", edit("scales", NAN, 9), "scales: a scale is nan"),
    ("pack-quantized W4A16, bfloat16", edit("weight_scale", INF), "weight_scale: a scale is inf"),
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


def test_quantized_tensors_need_a_quantization_config(tmp_path: Path) -> None:
    folders.write(tmp_path, Kind({}, KINDS["fp8, blocks"].pack))
    with pytest.raises(errors.UnsupportedFormat, match="has type F8_E4M3; supported: F32, F16, BF16"):
        open_weights(tmp_path)
