"""The tensors of a GGUF file by Hugging Face's names, one for each expert."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from legato_protocol.model_files.gguf_header import TensorInfo

_SCALAR_LAYER = "shared_expert_gate.weight"  # [1, hidden], written as [hidden]
_WITHOUT_SUFFIX = ("attn_sinks", "exp_probs_b")  # in Hugging Face's names
_MODEL_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_OTHER_NAMES = {  # by llama.cpp's architecture
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "gemma3": {"ffn_norm": "pre_feedforward_layernorm"},
    "gpt-oss": {"ffn_gate_inp": "mlp.router", "attn_sinks": "self_attn.sinks"},
    "glm4moe": {
        "exp_probs_b": "mlp.gate.e_score_correction_bias",
        "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj",
    },
    "granitemoe": {
        "ffn_gate_inp": "block_sparse_moe.router.layer",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.gate_proj",
        "ffn_up_exps": "block_sparse_moe.experts.{}.up_proj",
        "ffn_down_exps": "block_sparse_moe.experts.{}.down_proj",
    },
    "llama": {  # with experts: Mixtral
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    },
}


def huggingface_name(name: str, architecture: str = "") -> str:
    """Hugging Face's name of a GGUF tensor; an unknown name is returned unchanged. `architecture` is llama.cpp's.

    In the name of a tensor with all experts of a layer, `{}` stands for the expert's number."""
    module, _, kind = name.rpartition(".")
    if module in _MODEL_NAMES:
        return f"{_MODEL_NAMES[module]}.{kind}"
    block, _, rest = module.partition(".")
    layer, _, part = rest.partition(".")
    known = _LAYER_NAMES | _OTHER_NAMES.get(architecture, {})
    if block == "blk" and part in known:
        named = f"model.layers.{layer}.{known[part]}"
        return named if part in _WITHOUT_SUFFIX else f"{named}.{kind}"
    return name


def byte_size(info: TensorInfo) -> int:
    """The bytes of a tensor in the file."""
    group, size = GGML_QUANT_SIZES[GGMLQuantizationType(info.type)]
    return math.prod(info.shape) // group * size


def by_name(tensors: Mapping[str, TensorInfo], architecture: str, unread: Sequence[int] = ()) -> dict[str, TensorInfo]:
    """The tensors of a header by Hugging Face's names, except for the layers `unread`; a tensor of all experts is
    divided."""
    others = tuple(f"blk.{layer}." for layer in unread)
    read = {huggingface_name(name, architecture): info for name, info in tensors.items() if not name.startswith(others)}
    return dict(each for name, info in read.items() for each in _parts(name, info))


def _parts(name: str, info: TensorInfo) -> Iterator[tuple[str, TensorInfo]]:
    if "{}" in name and len(info.shape) > 1:
        count, *shape = info.shape
        size = byte_size(info) // count
        for expert in range(count):
            yield name.format(expert), replace(info, shape=tuple(shape), offset=info.offset + expert * size)
    elif name.endswith(_SCALAR_LAYER) and len(info.shape) == 1:
        yield name, replace(info, shape=(1, *info.shape))
    else:
        yield name, info
