#!/usr/bin/env python3
"""Prints the bytes of KV of a decoding sequence for each of its tokens, with all layers in one group and in the groups
that the engine makes.

    python benchmarks/engine/kv_bytes.py
"""

from collections.abc import Mapping
from typing import Any

from legato_engine.kvcache.layout import KVLayout
from legato_engine.models.config import from_huggingface
from legato_engine.runner.plan import layout_of

BLOCK_SIZE, DTYPE = 16, "bfloat16"
CONTEXTS = (1024, 8192, 32768, 131072)
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 24, "intermediate_size": 2880,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "vocab_size": 201088,
    "max_position_embeddings": 131072, "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
GEMMA = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 3840, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 48, "intermediate_size": 15360,
    "sliding_window": 1024, "sliding_window_pattern": 6, "query_pre_attn_scalar": 256, "vocab_size": 262208,
    "max_position_embeddings": 131072, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "intermediate_size": 14336, "sliding_window": 4096,
    "vocab_size": 32000, "max_position_embeddings": 32768,
}  # fmt: skip
MODELS: dict[str, Mapping[str, Any]] = {"gpt-oss-20b": GPT_OSS, "Gemma 3 12B": GEMMA, "Mistral 7B v0.1": MISTRAL}


def table() -> list[str]:
    """Returns the rows of a Markdown table."""
    rows = []
    for name, raw in MODELS.items():
        config = from_huggingface(raw, name)
        before = KVLayout(config.layers, config.kv_heads, BLOCK_SIZE, config.head_dim, DTYPE)
        after = layout_of(config, BLOCK_SIZE, DTYPE)
        for context in (each for each in CONTEXTS if each <= config.max_length):
            whole, grouped = (layout.sizes(0).decoding(context) * layout.block_bytes for layout in (before, after))
            share = f"{100 * grouped / whole:.0f} %"
            rows.append(f"| {name} | {context:,} | {whole // context:,} | {grouped // context:,} | {share} |")
    return rows


if __name__ == "__main__":
    print("\n".join(["| model | tokens | one group | groups | share |", "| --- | --- | --- | --- | --- |", *table()]))
