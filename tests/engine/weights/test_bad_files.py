"""A bad file or folder is refused by name before it can serve."""

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_files as files
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from legato_engine import errors
from legato_engine.weights.opening import open_weights

Write = Callable[[Path], object]
QUERY = "model.layers.0.self_attn.q_proj.weight"


def without(name: str) -> Write:
    return lambda path: files.write_gguf(path, {n: v for n, v in files.tiny(Type.F16).items() if n != name})


def with_tensor(name: str, data: np.ndarray, kind: Type) -> Write:
    return lambda path: files.write_gguf(path, files.tiny(Type.F16) | {name: (data, kind)})


def says(architecture: str = "llama", **metadata: object) -> Write:
    return lambda path: files.write_gguf(path, files.tiny(Type.F16), architecture, **metadata)


def cut(share: float) -> Write:
    def write(path: Path) -> None:
        whole = files.write_gguf(path, files.tiny(Type.Q8_0)).read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])

    return write


def holds(data: bytes) -> Write:
    return lambda path: path.write_bytes(data)


HALF_QUERY = np.zeros((files.HIDDEN, 32), np.float16)
TWO_BITS = np.zeros((files.HIDDEN, 84 * files.HIDDEN // 256), np.uint8)
MOE_GGUF, SIGMOID = {"expert_count": 8, "expert_used_count": 2}, gguf.ExpertGatingFuncType.SIGMOID
BAD_FILES = [
    (lambda path: None, errors.ModelNotFound, "no such file"),
    (holds(b""), errors.CorruptModel, "empty"),
    (holds(b"PK\x03\x04 a zip"), errors.CorruptModel, "not a GGUF"),
    (holds(b"GGUF" + struct.pack("<IQQ", 99, 0, 0)), errors.CorruptModel, "version 99"),
    (holds(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)), errors.CorruptModel, "truncated"),
    (cut(0.0005), errors.CorruptModel, "truncated"),
    (cut(0.9), errors.CorruptModel, "truncated: tensor blk"),
    (without("blk.1.ffn_up.weight"), errors.MissingTensor, r"model\.layers\.1\.mlp\.up_proj\.weight"),
    (without("output_norm.weight"), errors.MissingTensor, r"model\.norm\.weight"),
    (with_tensor("blk.0.attn_q.weight", HALF_QUERY, Type.F16), errors.WrongShape, r"q_proj.*\[256, 32\].*\[256, 256\]"),
    (with_tensor("blk.0.attn_q.weight", TWO_BITS, Type.Q2_K), errors.UnsupportedFormat, r"attn_q\.weight.*Q2_K.*Q4_K"),
    (with_tensor("blk.0.attn_x.weight", np.zeros(4, np.float32), Type.F32), errors.UnsupportedModel, r"attn_x"),
    (says("gptneox"), errors.UnsupportedModel, "gptneox.*llama"),
    (says("granite", expert_count=8), errors.UnsupportedModel, "expert_count 8 is not supported for GraniteFor"),
    (says(expert_count=8), errors.CorruptModel, "expert_used_count is None"),
    (says(expert_count=8, expert_used_count=2), errors.MissingTensor, r"layers\.0\.block_sparse_moe\.gate\.weight"),
    (says("olmoe", **MOE_GGUF, expert_gating_func=SIGMOID), errors.UnsupportedModel, "expert_gating_func is 2"),
    (says("olmoe", **MOE_GGUF, expert_weights_norm=True), errors.UnsupportedModel, "expert_weights_norm is True"),
    (says("olmo2", sliding_window=4096), errors.UnsupportedModel, "attention.sliding_window"),
    (says("granite", rope_scaling_finetuned=False), errors.UnsupportedModel, "rope.scaling.finetuned"),
    (says(rope_dimension_count=files.HEAD // 2), errors.UnsupportedModel, "rotary"),
]


@pytest.mark.parametrize(("write", "kind", "text"), BAD_FILES)
def test_a_bad_gguf_is_refused_by_name(tmp_path: Path, write: Write, kind: type[errors.ModelError], text: str) -> None:
    path = tmp_path / "bad.gguf"
    write(path)
    with pytest.raises(kind, match=text) as caught:
        open_weights(path)
    assert str(path) in str(caught.value)


QWEN = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": True}
GEMMA, PHI = ({"architectures": [f"{name}ForCausalLM"]} for name in ("Gemma3", "Phi3"))
MOE = {"architectures": ["Qwen3MoeForCausalLM"]}
GLM = {"architectures": ["Glm4MoeForCausalLM"]}
MULTIMODAL = {"architectures": ["Gemma3ForConditionalGeneration"]}
SLIDING = ["sliding_attention"] * 2
LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"architectures": ["BertModel"]}, errors.UnsupportedModel, "BertModel.*LlamaForCausalLM"),
        ({"architectures": None}, errors.UnsupportedModel, "None.*LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, errors.UnsupportedModel, "hidden_act"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, errors.UnsupportedModel, "dynamic"),
        ({"rope_scaling": {"rope_type": "longrope"}}, errors.CorruptModel, "short_factor"),
        ({"rope_scaling": {"rope_type": "yarn"}}, errors.CorruptModel, "factor"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": "x", "mscale_all_dim": 1.0}},
            errors.CorruptModel,
            "mscale",
        ),
        (QWEN | {"max_window_layers": "few"}, errors.CorruptModel, "max_window_layers"),
        (QWEN | {"layer_types": ["chunked_attention"] * 2}, errors.UnsupportedModel, "layer_types names 'chunked"),
        (QWEN | {"layer_types": ["full_attention"]}, errors.CorruptModel, "1 entries for 2 layers"),
        (QWEN | {"sliding_window": None, "layer_types": SLIDING}, errors.UnsupportedModel, "no window is set"),
        ({"model_type": "mistral"}, errors.UnsupportedModel, "'mistral' contradicts .*LlamaForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, errors.CorruptModel, "low_freq_factor"),
        ({"rope_scaling": LINEAR, "partial_rotary_factor": 0.5}, errors.UnsupportedModel, "partial_rotary_factor 0.5"),
        ({"rope_scaling": LINEAR | {"partial_rotary_factor": 0.5}}, errors.UnsupportedModel, "partial_rotary_factor"),
        (
            {"rope_parameters": {"full_attention": LINEAR}},
            errors.UnsupportedModel,
            "each kind of layer.*full_attention",
        ),
        (
            {"quantization_config": {"quant_method": "hqq"}},
            errors.UnsupportedFormat,
            "'hqq' is not supported; supported: fp8",
        ),
        (GEMMA | {"final_logit_softcapping": 30.0}, errors.UnsupportedModel, "final_logit_softcapping is 30.0"),
        (
            GEMMA | {"rope_parameters": {"sliding_attention": LINEAR}},
            errors.UnsupportedModel,
            "'linear' of sliding_attention",
        ),
        (GEMMA | {"rope_parameters": LINEAR}, errors.UnsupportedModel, "rope_parameters are .*full_attention"),
        (PHI | {"rope_scaling": LINEAR}, errors.UnsupportedModel, "'linear' is not supported; .*longrope"),
        (
            PHI | {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            errors.CorruptModel,
            "short_factor has 1 numbers; 32 are needed",
        ),
        (PHI | {"partial_rotary_factor": 1.5}, errors.CorruptModel, "96 dimensions; .* head_dim, 64"),
        (MOE | {"num_experts_per_tok": 5}, errors.CorruptModel, "5 experts for each token .* the model's 4"),
        (MOE | {"num_experts_per_tok": 0}, errors.CorruptModel, "num_experts_per_tok is 0"),
        (MOE | {"num_local_experts": 8}, errors.CorruptModel, "num_experts and num_local_experts differ: 4, 8"),
        (GLM | {"n_group": 4}, errors.CorruptModel, "4 experts cannot form 4 equal groups of two or more"),
        (
            GLM | {"n_group": 2, "topk_group": 3},
            errors.CorruptModel,
            "2 experts for each token, from 3 groups, are more",
        ),
        (GLM | {"num_experts_per_tok": 3, "n_group": 2}, errors.CorruptModel, "3 experts .* 1 groups, are more than 2"),
        (MOE | {"num_experts": 3}, errors.WrongShape, r"mlp\.gate\.weight .*\[4, 256\].*\[3, 256\]"),
        (MOE | {"moe_intermediate_size": 8}, errors.WrongShape, r"experts\.0\.gate_proj.*\[256, 256\].*\[8, 256\]"),
        (MOE | {"mlp_only_layers": [1]}, errors.MissingTensor, r"layers\.1\.mlp\.gate_proj"),
        (MOE | {"mlp_only_layers": [2]}, errors.UnsupportedModel, "mlp_only_layers names layer 2; 0 … 1 are allowed"),
        (MOE | {"mlp_only_layers": "all"}, errors.CorruptModel, "mlp_only_layers is 'all'; a list of layers"),
        (MOE | {"norm_topk_prob": 2}, errors.CorruptModel, "norm_topk_prob is 2; true or false"),
        ({"hidden_size": "many"}, errors.CorruptModel, "hidden_size"),
        ({"num_key_value_heads": 3}, errors.CorruptModel, "3 KV heads"),
        ({"head_dim": 32}, errors.WrongShape, "q_proj"),
        ({"num_hidden_layers": 3}, errors.MissingTensor, r"layers\.2"),
        ({"num_hidden_layers": 1}, errors.UnsupportedModel, r"layers\.1.*no place"),
        ({"tie_word_embeddings": False}, errors.MissingTensor, "lm_head"),
        ({"tie_word_embeddings": "false"}, errors.CorruptModel, "tie_word_embeddings is 'false'; true or false"),
        ({"rope_theta": -1.0}, errors.CorruptModel, "rope_theta is -1.0"),
        ({"rope_scaling": "linear"}, errors.CorruptModel, "rope_scaling is 'linear'; an object"),
        (GEMMA | {"rope_scaling": [2.0]}, errors.CorruptModel, "rope_scaling is .*; an object"),
        (
            {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": 3},
            errors.CorruptModel,
            "text_config is 3",
        ),
        (GEMMA | {"sliding_window": None}, errors.UnsupportedModel, "no window is set"),
        (PHI | {"sliding_window": 0}, errors.CorruptModel, "sliding_window is 0"),
        (
            PHI | {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 1},
            errors.CorruptModel,
            "original_max_position_embeddings is 1.* above 1",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, object], kind: type[errors.ModelError], text: str
) -> None:
    files.write_folder(
        tmp_path, "Qwen3MoeForCausalLM" if MOE.items() <= change.items() else "LlamaForCausalLM", **change
    )
    with pytest.raises(kind, match=text) as caught:
        open_weights(tmp_path)
    assert str(tmp_path) in str(caught.value)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.mark.parametrize("name", ["tiny.gguf", "model.safetensors", "config.json"])
def test_a_git_lfs_pointer_is_refused_with_the_way_to_fetch_it(tmp_path: Path, name: str) -> None:
    files.write_folder(tmp_path)
    (tmp_path / name).write_bytes(POINTER)
    with pytest.raises(errors.CorruptModel, match=f"{name}: .*Git LFS pointer.*git lfs pull"):
        open_weights(tmp_path / name if name == "tiny.gguf" else tmp_path)


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    written = files.write_folder(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (whole[:-10], whole[:100], b"\xff" * 64):
        file.write_bytes(damaged)
        with pytest.raises(errors.CorruptModel, match=r"model\.safetensors"):
            open_weights(tmp_path)
    save_file({**written, QUERY: written[QUERY].to(torch.int8)}, file)
    with pytest.raises(errors.UnsupportedFormat, match=r"q_proj.*I8"):
        open_weights(tmp_path)
    file.unlink()
    with pytest.raises(errors.ModelNotFound, match=r"model\.safetensors"):
        open_weights(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(errors.CorruptModel, match=r"config\.json"):
        open_weights(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(errors.ModelNotFound, match=r"config\.json"):
        open_weights(tmp_path)
