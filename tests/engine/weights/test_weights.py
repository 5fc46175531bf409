"""Weights: every number format gives what its reference gives."""

import json
import re
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import packed_weights
import pytest
import quantized_folders as folders
import tiny_files as files
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from safetensors.torch import save_file
from tiny_families import CONFIGS
from tiny_models import RandomCheckpoint

from legato_engine import errors
from legato_engine.models.config import ModelConfig, from_huggingface
from legato_engine.weights import gguf_blocks
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.cut import WHOLE
from legato_engine.weights.opening import open_weights

QUANTIZED = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"]
KEPT_BY_GPUS = {"Q4_0": 4.5, "MXFP4": 4.25}  # bits, if they differ from those that CPUs keep
SUPPORTED = ["F32", "F16", "BF16", *QUANTIZED]
QUERY, KEY = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"
Tensors = dict[str, tuple[np.ndarray, Type]]


@pytest.mark.parametrize("kind", SUPPORTED)
def test_gguf_tensors_equal_the_reference_dequantization(tmp_path: Path, kind: str) -> None:
    tensors = files.tiny(Type[kind])
    checkpoint = open_weights(files.write_gguf(tmp_path / "tiny.gguf", tensors))
    assert len(checkpoint.names()) == len(files.TENSORS)
    for gguf_name, name, heads in (
        ("token_embd.weight", "model.embed_tokens.weight", 0),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight", 0),
        ("blk.0.attn_q.weight", QUERY, files.HEADS),
        ("blk.1.attn_k.weight", KEY, files.KV_HEADS),
    ):
        expected = torch.from_numpy(dequantize(tensors[gguf_name][0], Type[kind]).copy()).view(files.TENSORS[gguf_name])
        found = checkpoint.tensor(name).float()
        assert torch.isfinite(expected).all()
        assert torch.equal(files.as_converted(found, heads) if heads else found, expected)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_codes_are_of_few_forms(tmp_path: Path, kind: str) -> None:
    """Codes fit their bits, scales their form; what they take is known without reading them."""
    checkpoint = open_weights(files.write_gguf(tmp_path / "tiny.gguf", files.tiny(Type[kind])))
    form = (4, torch.uint8) if kind.startswith("Q4") else (8, torch.int8)
    for name in (QUERY, KEY, "model.layers.0.mlp.down_proj.weight"):
        packed = checkpoint.packed(name)
        assert packed is not None
        assert (packed.bits, packed.codes.dtype, packed.group) == (*form, 16 if kind == "Q6_K" else 32)
        assert packed.bits == 8 or packed.codes.max() <= 15
        parts = [part for each in (packed.scale, packed.minimum) if each for part in (each.values, each.factors)]
        scales = sum(8 * part.nbytes for part in parts if part is not None)
        assert checkpoint.packed_bits(name) == packed.bits + scales / packed.codes.numel()
        grouped, grouped_form = packed_weights.grouped(checkpoint, name), checkpoint.grouped_form(name)
        assert grouped is not None
        assert grouped_form is not None
        assert torch.equal(grouped.floats(), checkpoint.tensor(name))
        assert (grouped_form.element, grouped_form.group) == (grouped.element, packed.group)
        checkpoint._dequantize_there(name, WHOLE, dequantized := torch.empty(checkpoint.shape(name)))  # as on a GPU
        assert torch.equal(dequantized, checkpoint.tensor(name))
        assert grouped_form.bits == grouped.bits == KEPT_BY_GPUS.get(kind, checkpoint.packed_bits(name))
    for name in (QUERY, "model.layers.0.mlp.down_proj.weight"):
        packed_weights.check_parts(checkpoint, name)
    norm = "model.norm.weight"
    assert (checkpoint.packed(norm), checkpoint.packed_bits(norm)) == (None, None)


@pytest.mark.parametrize("kind", gguf_blocks.KINDS, ids=lambda kind: kind.name)
def test_blocks_are_unpacked_where_they_are(kind: Type) -> None:
    """An operation of a device with a tensor of the host would fail."""
    blocks = torch.empty(6, gguf.GGML_QUANT_SIZES[kind][1], dtype=torch.uint8, device="meta")
    assert gguf_blocks.KINDS[kind].unpack(blocks).codes.is_meta


def test_numbers_beyond_float16_are_no_codes(tmp_path: Path) -> None:
    """Q4_0 has none: it is -8 times the scale. Nor are scales of MXFP4, unless all of their numbers are 0."""
    name = "model.layers.0.mlp.down_proj.weight"
    for kind, first, filled in ((Type.Q4_0, [0x65, 0x70], True), (Type.MXFP4, [103], True), (Type.MXFP4, [3], False)):
        tensors = files.tiny(kind)
        down = tensors["blk.0.ffn_down.weight"][0].copy()
        block = down.reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])[3]
        block[: len(first)], block[len(first) :] = first, block[len(first) :] if filled else 0x80
        tensors["blk.0.ffn_down.weight"] = down, kind
        checkpoint = open_weights(files.write_gguf(tmp_path / "tiny.gguf", tensors))
        assert (checkpoint.packed(name) is None) == filled
        expected = torch.from_numpy(dequantize(down, kind).copy())
        assert torch.equal(checkpoint.tensor(name), expected.view(checkpoint.shape(name)))


@pytest.mark.parametrize(
    ("kind", "byte", "part"),
    [("Q8_0", 0, "scale"), ("Q4_1", 2, "minimum"), ("Q5_K", 2, "minimum"), ("MXFP4", 0, "scale")],
)
def test_a_gguf_scale_that_is_not_finite_is_refused(tmp_path: Path, kind: str, byte: int, part: str) -> None:
    tensors = files.tiny(Type[kind]).copy()
    down = tensors["blk.0.ffn_down.weight"][0].copy()
    nan = 0xFF if kind == "MXFP4" else np.array([np.nan], np.float16).view(np.uint8)
    down.view(np.uint8).reshape(-1)[byte : byte + 2] = nan
    tensors["blk.0.ffn_down.weight"] = down, Type[kind]
    checkpoint = open_weights(files.write_gguf(tmp_path / "tiny.gguf", tensors))
    for read in (checkpoint.packed, checkpoint.tensor):
        with pytest.raises(errors.CorruptModel, match=rf"tensor blk\.0\.ffn_down\.weight: a {part} is NaN"):
            read("model.layers.0.mlp.down_proj.weight")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_both_formats_of_one_model_are_equal(tmp_path: Path, kind: str) -> None:
    written = files.write_folder(tmp_path / "folder", f"{kind.capitalize()}ForCausalLM")
    back = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    tensors: Tensors = {}
    for name, tensor in written.items():
        module, _, part = name.rpartition(".")
        heads = files.HEADS if ".q_proj" in name else files.KV_HEADS if ".k_proj" in name else 0
        data = (files.as_converted(tensor, heads) if heads and kind == "llama" else tensor).numpy()
        tensors[f"{back.get(module) or gguf_name(module)}.{part}"] = (data, Type.F32)
    same_file = files.write_gguf(tmp_path / "same.gguf", tensors, kind)
    folder, file = open_weights(tmp_path / "folder"), open_weights(same_file)
    assert folder.names() == file.names() == written.keys()
    assert all(torch.equal(folder.tensor(name), file.tensor(name)) for name in written)
    assert all(torch.equal(folder.tensor(name), tensor) for name, tensor in written.items())
    same = {k: v for k, v in vars(folder.config).items() if k != "rms_norm_eps"}
    assert same == {k: v for k, v in vars(file.config).items() if k != "rms_norm_eps"}
    assert file.config.rms_norm_eps == pytest.approx(1e-5)


def test_all_parts_of_a_split_gguf_are_one_model(tmp_path: Path) -> None:
    """Parts other than the first one are refused, and a missing one, a repeated or a missing tensor."""
    tensors = files.tiny(Type.Q8_0)
    whole = open_weights(files.write_gguf(tmp_path / "whole.gguf", tensors))
    files.write_gguf(tmp_path / "tiny.gguf", tensors, split=8)
    first, second, third = sorted(tmp_path.glob("tiny-*"))
    split = open_weights(first)
    assert (split.config, split.names(), split.quantization) == (whole.config, whole.names(), whole.quantization)
    assert split.spans().keys() == {first, second, third}
    for name in whole.names():
        assert torch.equal(split.tensor(name), whole.tensor(name)), name
    with pytest.raises(errors.CorruptModel, match=r"one of 3 parts .*like tiny-00001-of-00003\.gguf"):
        open_weights(second)
    third.write_bytes(second.read_bytes())
    with pytest.raises(errors.CorruptModel, match=r"00003\.gguf: tensor .* is also in another part"):
        open_weights(first)
    files.write_gguf(third, {"output.weight": tensors["token_embd.weight"]})
    with pytest.raises(errors.CorruptModel, match=r"its parts have \d+ tensors; split\.tensors\.count is 20"):
        open_weights(first)
    third.unlink()
    with pytest.raises(errors.ModelNotFound, match=r"its part tiny-00003-of-00003\.gguf is missing"):
        open_weights(first)


PARTS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "o_proj": "attn_output", "q_proj": "attn_q",
    "k_proj": "attn_k", "v_proj": "attn_v", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
    "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
}  # fmt: skip


def gguf_name(module: str) -> str:
    _, _, layer, *_, part = module.split(".")
    return f"blk.{layer}.{PARTS[part]}"


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    written = files.write_folder(tmp_path)
    names = sorted(written)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    (tmp_path / "model.safetensors").unlink()
    for file, held in halves.items():
        save_file({name: written[name] for name in held}, tmp_path / file)
    index = {"weight_map": {name: file for file, held in halves.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = open_weights(tmp_path)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in written.items())
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(errors.ModelNotFound, match=r"b\.safetensors"):
        open_weights(tmp_path)


@pytest.mark.parametrize("shards", ["missing", "there"])
def test_one_file_precedes_a_stale_index(tmp_path: Path, shards: str, caplog: pytest.LogCaptureFixture) -> None:
    """As in transformers: merging adapters into a model leaves such folders."""
    written = files.write_folder(tmp_path)
    index = {"weight_map": dict.fromkeys(written, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    if shards == "there":
        old = {name: tensor + 1 for name, tensor in written.items()}
        save_file(old, tmp_path / "model-00001-of-00001.safetensors")
    checkpoint = open_weights(tmp_path)
    assert all(torch.equal(checkpoint.tensor(name), tensor) for name, tensor in written.items())
    assert [path.name for path in checkpoint.spans()] == ["model.safetensors"]
    assert "model.safetensors.index.json is ignored" in caplog.text


@pytest.mark.parametrize("format", ["folder", "gguf"])
def test_a_tensor_that_is_not_there_is_named(tmp_path: Path, format: str) -> None:
    files.write_folder(tmp_path)
    gguf_file = files.write_gguf(tmp_path / "tiny.gguf", files.tiny(Type.F16))
    checkpoint = open_weights(tmp_path if format == "folder" else gguf_file)
    for read in (checkpoint.tensor, checkpoint.packed, checkpoint.packed_bits, checkpoint.shape):
        with pytest.raises(errors.MissingTensor, match=r"lm_head\.weight"):
            read("lm_head.weight")


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q6_K"])
def test_what_is_read_into_a_place_is_the_tensor_in_its_dtype(tmp_path: Path, kind: str) -> None:
    checkpoint = open_weights(files.write_gguf(tmp_path / "tiny.gguf", files.tiny(Type[kind])))
    whole = checkpoint.tensor(QUERY)
    place = torch.full((len(whole) + 2, whole.shape[1]), 7.0, dtype=torch.bfloat16)
    checkpoint.read(QUERY, place[1:-1])
    assert torch.equal(place[1:-1], whole.to(torch.bfloat16))
    assert (place[[0, -1]] == 7).all()


@pytest.mark.parametrize("own", [False, True])
def test_a_head_that_differs_from_the_embeddings_counts_although_the_config_ties_them(
    tmp_path: Path, own: bool
) -> None:
    """As in transformers. A copy is not kept twice."""
    tensors = files.write_folder(tmp_path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + own
    save_file(tensors, tmp_path / "model.safetensors")
    assert open_weights(tmp_path).config.tie_word_embeddings is not own


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    tensors = files.write_folder(tmp_path, "Glm4MoeForCausalLM")
    for number in (files.LAYERS, files.LAYERS + 1):
        extra = {
            f"model.layers.{number}.{part}": torch.zeros(3) for part in ("input_layernorm.weight", "eh_proj.codes")
        }
        save_file(tensors | extra, tmp_path / "model.safetensors")
        if number == files.LAYERS:
            assert open_weights(tmp_path).names() == tensors.keys()
    with pytest.raises(errors.UnsupportedModel, match=r"tensor model\.layers\.3\.eh_proj\.codes has no place"):
        open_weights(tmp_path)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_of_a_folder_with_further_inputs_is_opened(tmp_path: Path, prefix: str) -> None:
    tensors = files.write_folder(tmp_path, "Gemma3ForCausalLM")
    plain = open_weights(tmp_path)
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors.items()}
    images = {f"{tower}.weight": torch.zeros(3) for tower in ("vision_tower.patches", "multi_modal_projector.norm")}
    save_file(renamed | images, tmp_path / "model.safetensors")
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "hidden_size": 1}
    text = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "gemma3_text"}
    whole, text = whole | {"tie_word_embeddings": True}, text | {"tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": text, "vision_config": {}}))

    found = open_weights(tmp_path)

    assert (found.config, found.names()) == (plain.config, plain.names())
    for name in found.names():
        assert torch.equal(found.tensor(name), tensors[name])


YARN = {"rope_scaling_type": gguf.RopeScalingType.YARN, "rope_scaling_factor": 32.0, "rope_scaling_orig_ctx_len": 4096}
LINEAR = {"rope_scaling_type": gguf.RopeScalingType.LINEAR, "rope_scaling_factor": 8.0}
SCALES = {"attention_scale": 0.03, "embedding_scale": 6.0, "residual_scale": 0.4, "logit_scale": 3.0}


GLM = {
    "block_count": 5, "nextn_predict_layers": 1, "rope_dimension_count": 16, "leading_dense_block_count": 1,
    "expert_feed_forward_length": 64, "expert_shared_count": 1, "expert_weights_scale": 2.5,
    "expert_weights_norm": True, "expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID,
}  # fmt: skip


def experts(count: int, active: int) -> dict[str, int]:
    return {"expert_count": count, "expert_used_count": active}


@pytest.mark.parametrize(
    ("name", "architecture", "metadata"),
    [
        ("granite", "granite", SCALES),
        ("olmo 2", "olmo2", {}),
        ("smollm 3", "smollm3", {}),
        ("phi 3", "phi3", {"sliding_window": 48, "rope_dimension_count": 24}),
        ("qwen 3 moe", "qwen3moe", experts(8, 3) | {"expert_feed_forward_length": 64, "expert_weights_norm": True}),
        (
            "qwen 2 moe",
            "qwen2moe",
            experts(6, 2)
            | {
                "expert_feed_forward_length": 32,
                "expert_shared_feed_forward_length": 64,
            },
        ),
        ("mixtral", "llama", experts(4, 2)),
        ("granite moe", "granitemoe", experts(6, 2) | SCALES),
        ("seed oss", "seed_oss", {}),
        ("glm 4 moe", "glm4moe", experts(8, 3) | GLM),
        ("olmoe", "olmoe", experts(8, 2)),
        ("gpt-oss", "gpt-oss", {"sliding_window": 48, "expert_feed_forward_length": 96} | YARN | experts(6, 3)),
        ("gemma 3", "gemma3", {"sliding_window": 48, "sliding_window_pattern": 2, **LINEAR}),
    ],
)
def test_a_gguf_of_a_family_is_the_folder_that_it_was_converted_from(
    tmp_path: Path, name: str, architecture: str, metadata: dict[str, Any]
) -> None:
    """Names of tensors are those of llama.cpp's converter; those of Llama's kin have queries and keys reordered,
    norms of Gemma 1 added, and experts of a layer are one tensor."""
    raw = CONFIGS[name] | {"num_hidden_layers": 4, "no_rope_layers": None, "query_pre_attn_scalar": 32}
    raw |= {"sliding_window": None} if name == "mixtral" else {}
    config = from_huggingface(raw | ({"partial_rotary_factor": 0.75} if architecture == "phi3" else {}), name)
    weights = RandomCheckpoint(config)
    tensors = converted(weights, architecture, lambda name: Type.F32)

    checkpoint = open_weights(write_converted(tmp_path / "it.gguf", tensors, config, architecture, **metadata))

    for value, expected in zip(astuple(checkpoint.config), astuple(replace(config, norm_offset=0.0)), strict=True):
        assert value == (pytest.approx(expected) if isinstance(expected, float) else expected)
    for each in weights.names():
        offset = config.norm_offset if each.endswith("norm.weight") else 0.0
        assert torch.equal(checkpoint.tensor(each), weights.tensor(each) + offset)


def test_a_gguf_of_phi_4_mini_has_factors_for_long_and_for_short_sequences(tmp_path: Path) -> None:
    config = from_huggingface(CONFIGS["phi 4 mini"], "here")
    expected = config.rope_scaling
    assert expected is not None
    tensors = converted(RandomCheckpoint(config), "phi3", lambda name: Type.F32)
    for kind in ("long", "short"):
        tensors[f"rope_factors_{kind}.weight"] = np.array(expected[f"{kind}_factor"], np.float32), Type.F32
    scaling = {"rope_scaling_attn_factors": expected["attention_factor"], "rope_scaling_orig_ctx_len": 1024}
    path = write_converted(tmp_path / "it.gguf", tensors, config, "phi3", rope_dimension_count=24, **scaling)
    actual = open_weights(path).config.rope_scaling
    assert actual is not None
    assert actual.keys() == expected.keys()
    for key in expected.keys() - {"rope_type"}:
        assert actual[key] == pytest.approx(expected[key]), key


def test_a_gguf_of_gpt_oss_in_mxfp4_is_its_folder(tmp_path: Path) -> None:
    folders.write_gpt_oss(tmp_path / "folder")
    folder = open_weights(tmp_path / "folder")
    tensors = converted(
        folder, "gpt-oss", lambda name: Type.MXFP4 if "experts" in name and "bias" not in name else Type.F32
    )
    metadata = {"sliding_window": 48} | YARN | experts(6, 3)
    file = open_weights(write_converted(tmp_path / "it.gguf", tensors, folder.config, "gpt-oss", **metadata))
    assert file.config == replace(folder.config, rms_norm_eps=file.config.rms_norm_eps)
    assert (file.names(), file.quantized()) == (folder.names(), folder.quantized())
    for each in file.names():
        assert torch.equal(file.tensor(each), folder.tensor(each))
    for each in file.quantized():
        packed, grouped = file.packed(each), packed_weights.grouped(file, each)
        assert packed is not None
        assert grouped is not None
        assert torch.equal(packed.floats(), folder.tensor(each))
        assert torch.equal(grouped.floats(), folder.tensor(each))
        assert file.grouped_form(each) == folder.grouped_form(each)


def converted(weights: Checkpoint, architecture: str, kind_of: Callable[[str], Type]) -> Tensors:
    """The tensors as llama.cpp's converter names and orders them, in the types that `kind_of` returns for names."""
    config = weights.config
    known = {name: known for known, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(known[architecture], config.layers)
    tensors: Tensors = {}
    for each in sorted(weights.names()):
        tensor, kind = weights.tensor(each).float(), kind_of(each)
        if architecture in ("granite", "granitemoe", "smollm3", "llama") and each.endswith(
            (".q_proj.weight", ".k_proj.weight")
        ):
            tensor = files.as_converted(tensor, config.heads if "q_proj" in each else config.kv_heads)
        if each.endswith("norm.weight"):
            tensor = tensor + config.norm_offset
        together, count = re.subn(r"\.experts\.\d+\.", ".experts.", each)
        if architecture == "granitemoe" and count:  # whose files name them in another way
            together = together.replace("block_sparse_moe", "mlp")
        together = together.replace("correction_bias", "correction.bias")
        place = names.get_name(together, (".weight", ".bias")) or each
        place += ".weight" if place.endswith("sinks") else ""
        data = tensor.squeeze().numpy()
        data = data if kind is Type.F32 else gguf.quants.quantize(data, kind)
        if count:
            held = [tensors[place][0]] if place in tensors else []
            data = np.concatenate((*held, data[None]))
        tensors[place] = data, kind
    for each in ("attn_norm", "nextn.enorm") if config.predictor_layers else ():
        tensors[f"blk.{config.layers}.{each}.weight"] = np.ones(3, np.float32), Type.F32
    return tensors


def write_converted(path: Path, tensors: Tensors, config: ModelConfig, architecture: str, **metadata: Any) -> Path:
    sizes = {
        "block_count": config.layers, "context_length": config.max_length, "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size, "head_count": config.heads, "head_count_kv": config.kv_heads,
        "key_length": config.head_dim, "value_length": config.head_dim, "vocab_size": config.vocab_size,
        "rope_freq_base": config.rope_theta,
    }  # fmt: skip
    return files.write_gguf(path, tensors, architecture, **sizes | metadata)
