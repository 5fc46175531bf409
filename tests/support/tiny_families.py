"""Tiny models of further families by their `config.json`, which transformers reads, too."""

import copy
from typing import Any

from legato_engine.models.config import ModelConfig, from_huggingface

_SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 2,
    "intermediate_size": 96, "vocab_size": 320, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_PHI = _SIZES | {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip
_LONG = {
    "type": "longrope",
    "short_factor": [1 + pair / 20 for pair in range(12)],
    "long_factor": [1 + pair / 3 for pair in range(12)],
}
_PHI_MINI = _PHI | {"partial_rotary_factor": 0.75, "tie_word_embeddings": True, "rope_scaling": _LONG}
_GEMMA = _SIZES | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 48,
    "sliding_window_pattern": 2, "query_pre_attn_scalar": 20, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip
_SMOLLM3 = _SIZES | {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_hidden_layers": 3}
_QWEN3_MOE = _SIZES | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
}  # fmt: skip
_GLM = _SIZES | {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_hidden_layers": 3, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "moe_intermediate_size": 64, "routed_scaling_factor": 2.5, "attention_bias": True,
}  # fmt: skip
_GPT_OSS = _SIZES | {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_local_experts": 6, "num_experts_per_tok": 3,
    "sliding_window": 48,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "phi 3": _PHI | {"sliding_window": 48},
    "phi 4 mini": _PHI_MINI | {"original_max_position_embeddings": 1024, "max_position_embeddings": 4096},
    "phi 4 mini, long": _PHI_MINI | {"original_max_position_embeddings": 4},
    "gemma 3": _GEMMA | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "granite": _SIZES
    | {
        "architectures": ["GraniteForCausalLM"], "model_type": "granite", "attention_multiplier": 0.03,
        "embedding_multiplier": 6.0, "residual_multiplier": 0.4, "logits_scaling": 3.0, "tie_word_embeddings": True,
    },
    "granite moe": _SIZES
    | {
        "architectures": ["GraniteMoeForCausalLM"], "model_type": "granitemoe", "num_local_experts": 6,
        "num_experts_per_tok": 2, "attention_multiplier": 0.03, "embedding_multiplier": 6.0,
        "residual_multiplier": 0.4, "logits_scaling": 3.0, "tie_word_embeddings": True,
    },
    "olmo 2": _SIZES | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rope_theta": 500000},
    "olmo 3": _SIZES
    | {
        "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 48,
        "rope_theta": 500000, "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "attention_factor": 1.2,
        },
    },
    "seed oss": _SIZES
    | {
        "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "attention_out_bias": False,
        "mlp_bias": True, "rope_theta": 1e6,
    },
    "exaone 4": _SIZES
    | {
        "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "sliding_window": 48,
        "sliding_window_pattern": 2,
    },
    "exaone 4, no windows": _SIZES
    | {
        "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "sliding_window": None,
        "layer_types": ["full_attention"] * 2,
    },
    "qwen 3 moe": _QWEN3_MOE | {"norm_topk_prob": True},
    "qwen 3 moe, dense layers": _QWEN3_MOE | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "mixtral": _SIZES
    | {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": 48,
    },
    "qwen 2 moe": _SIZES
    | {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64,
    },
    "olmoe": _SIZES
    | {
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_experts": 8, "num_experts_per_tok": 2,
        "head_dim": 16,
    },
    "glm 4 moe": _GLM | {"use_qk_norm": True},
    "glm 4 moe, groups": _GLM
    | {
        "num_hidden_layers": 2, "n_routed_experts": 12, "n_group": 4, "topk_group": 2, "n_shared_experts": 2,
        "norm_topk_prob": False, "attention_bias": False, "partial_rotary_factor": 0.25, "first_k_dense_replace": 0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    },
    "gpt-oss": _GPT_OSS,
    "gpt-oss, tied": _GPT_OSS
    | {
        "tie_word_embeddings": True, "layer_types": ["full_attention", "sliding_attention"], "attention_bias": False,
        "rope_theta": 5000.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": True},
    },
    "smollm 3": _SMOLLM3 | {"no_rope_layers": [1, 0, 1]},
    "smollm 3, windows": _SMOLLM3
    | {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 48},
}  # fmt: skip


FAMILIES = {name: from_huggingface(raw, name) for name, raw in CONFIGS.items()}


def raw_of(config: ModelConfig) -> dict[str, Any] | None:
    """The `config.json` of one of these models, for transformers."""
    name = next((name for name, each in FAMILIES.items() if each == config), None)
    return None if name is None else copy.deepcopy(CONFIGS[name])
