"""Builders of tiny models: GGUF files of any number format, and Hugging Face folders."""

import json
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from legato_engine.models.config import from_huggingface
from legato_engine.weights.expected import expected_shapes

HIDDEN, HEADS, KV_HEADS, INNER, VOCAB, LAYERS = 256, 4, 2, 512, 64, 2
HEAD = HIDDEN // HEADS
EXPERTS = {
    "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 128,
}  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "num_hidden_layers": LAYERS,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    **EXPERTS,
}
LAYER = {
    "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN), "attn_k": (KV_HEADS * HEAD, HIDDEN),
    "attn_v": (KV_HEADS * HEAD, HIDDEN), "attn_output": (HIDDEN, HIDDEN), "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
}  # fmt: skip
TENSORS = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)} | {
    f"blk.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in LAYER.items()
}
Tensors = dict[str, tuple[np.ndarray, Type]]


def packed(kind: Type, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random data of a type, as the file holds it. The K types have no quantizer: their codes are drawn at random."""
    values = rng.standard_normal(shape).astype(np.float32)
    if kind is Type.F32:
        return values
    if kind is Type.F16:
        return values.astype(np.float16)
    if kind not in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
        return gguf.quants.quantize(values, kind)
    group, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (np.prod(shape) // group, size), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.01, (len(blocks), 2)).astype(np.float16).view(np.uint8)
    place = slice(size - 2, size) if kind is Type.Q6_K else slice(0, 4)
    blocks[:, place] = scales[:, : place.stop - place.start]
    return blocks.reshape(*shape[:-1], -1)


def tiny(kind: Type, seed: int = 0, experts: int = 0) -> Tensors:
    """Tensors of a model whose matrices are of this type; the arrays, which tests share, cannot be written to."""
    return dict(_tiny(kind, seed, experts))


@cache
def _tiny(kind: Type, seed: int, experts: int) -> Tensors:
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in TENSORS.items():
        divided = experts and "ffn" in name and len(shape) == 2
        shapes |= {name.replace(".weight", "_exps.weight"): (experts, *shape)} if divided else {name: shape}
        if divided and "gate" in name:
            shapes[name.replace("gate", "gate_inp")] = (experts, HIDDEN)
    kinds = {name: kind if len(shape) > 1 and "inp" not in name else Type.F32 for name, shape in shapes.items()}
    made = {name: (packed(kinds[name], shape, rng), kinds[name]) for name, shape in shapes.items()}
    for array, _ in made.values():
        array.flags.writeable = False
    return made


def write_gguf(path: Path, tensors: Tensors, architecture: str = "llama", split: int = 0, **metadata: object) -> Path:
    """With `split`, in parts of at most so many tensors, which the writer names."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    sizes = {
        "block_count": LAYERS, "context_length": 128, "embedding_length": HIDDEN, "feed_forward_length": INNER,
        "head_count": HEADS, "head_count_kv": KV_HEADS, "rope_freq_base": 5000.0, "layer_norm_rms_eps": 1e-5,
        "vocab_size": VOCAB,
    }  # fmt: skip
    for key, value in (sizes | metadata).items():
        getattr(writer, f"add_{key}")(value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path: Path, architecture: str = "LlamaForCausalLM", **changes: object) -> dict[str, torch.Tensor]:
    """A Hugging Face folder with random weights; the tensors are returned. `changes` are to its config alone."""
    path.mkdir(exist_ok=True)
    config = CONFIG | {"architectures": [architecture]}
    (path / "config.json").write_text(json.dumps(config | changes))
    generator = torch.Generator().manual_seed(1)
    shapes = expected_shapes(from_huggingface(config, "here"))
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file(tensors, path / "model.safetensors")
    return tensors


def as_converted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Permutes the rows of q_proj and k_proj, as llama.cpp's conversion does."""
    return rows.view(heads, 2, rows.shape[0] // heads // 2, -1).transpose(1, 2).reshape(rows.shape)
