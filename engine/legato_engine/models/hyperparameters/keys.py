"""Keys of a `config.json` that only some architectures read, as in transformers: others ignore them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from legato_engine.errors import UnsupportedModel
from legato_engine.models.hyperparameters import experts
from legato_engine.models.hyperparameters.fields import mapping


@dataclass(frozen=True, slots=True)
class Keys:
    """An architecture's own keys, and transformers' defaults where they differ from Llama's. `only` has the supported
    values of keys that change the computation."""

    model_type: str
    reads: frozenset[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: {"hidden_act": ("silu",)})


_WINDOWS = frozenset({"use_sliding_window", "sliding_window", "layer_types"})
_QWEN_WINDOWS = _WINDOWS | {"max_window_layers"}
_QWEN = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28, "num_key_value_heads": 32}
_GEMMA = frozenset({
    "attention_bias", "sliding_window", "layer_types", "sliding_window_pattern", "rope_local_base_freq",
    "query_pre_attn_scalar",
})  # fmt: skip
_GEMMA_DEFAULTS = {
    "sliding_window": 4096, "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0, "rope_theta": 1e6,
    "query_pre_attn_scalar": 256, "num_key_value_heads": 4, "head_dim": 256, "tie_word_embeddings": True,
    "vocab_size": 262208, "num_attention_heads": 8, "max_position_embeddings": 131072,
}  # fmt: skip
_GEMMA_ONLY: dict[str, tuple[object, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "use_bidirectional_attention": (None, False),
}
_GPT_OSS = {
    "sliding_window": 128, "sliding_window_pattern": 2, "attention_bias": True, "rope_theta": 150000.0,
    "rope_parameters": {
        "rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096
    },
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
_GPT_OSS_ONLY: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "swiglu_alpha": (1.702,),
    "swiglu_limit": (7.0,),
}
_PREDICTORS = ("num_mtp_layers", "num_nextn_predict_layers")
_GLM = {
    "partial_rotary_factor": 0.5, "n_shared_experts": 1, "first_k_dense_replace": 1, "norm_topk_prob": True,
    "num_nextn_predict_layers": 1, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
}  # fmt: skip
_MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
KEYS = {
    "LlamaForCausalLM": Keys("llama", frozenset({"attention_bias", "mlp_bias"})),
    "MistralForCausalLM": Keys(
        "mistral", frozenset({"sliding_window"}), {"sliding_window": 4096, "num_key_value_heads": 8}
    ),
    "Qwen2ForCausalLM": Keys("qwen2", _QWEN_WINDOWS, _QWEN),
    "Qwen3ForCausalLM": Keys("qwen3", _QWEN_WINDOWS | {"attention_bias"}, _QWEN | {"head_dim": 128}),
    "Phi3ForCausalLM": Keys(
        "phi3",
        frozenset({"sliding_window"}),
        {"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    ),
    "Gemma3ForCausalLM": Keys("gemma3_text", _GEMMA, _GEMMA_DEFAULTS, _GEMMA_ONLY),
    "GraniteForCausalLM": Keys(
        "granite", frozenset({"attention_bias", "mlp_bias", *_MULTIPLIERS}), {"attention_multiplier": 1.0}
    ),
    "GraniteMoeForCausalLM": Keys(
        "granitemoe",
        experts.KEYS["GraniteMoeForCausalLM"] | {"attention_bias", *_MULTIPLIERS},
        {"attention_multiplier": 1.0},
    ),
    "MixtralForCausalLM": Keys(
        "mixtral",
        experts.KEYS["MixtralForCausalLM"] | {"sliding_window"},
        {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 131072},
    ),
    "Qwen3MoeForCausalLM": Keys(
        "qwen3_moe",
        experts.KEYS["Qwen3MoeForCausalLM"] | {"use_sliding_window", "sliding_window", "attention_bias"},
        {"sliding_window": 4096, "use_sliding_window": False, "num_key_value_heads": 4},
    ),
    "Qwen2MoeForCausalLM": Keys(
        "qwen2_moe",
        experts.KEYS["Qwen2MoeForCausalLM"] | _QWEN_WINDOWS,
        _QWEN | {"num_key_value_heads": 16, "sliding_window_pattern": 2},
        {"hidden_act": ("silu",), "qkv_bias": (True,)},
    ),
    "OlmoeForCausalLM": Keys(
        "olmoe",
        experts.KEYS["OlmoeForCausalLM"] | {"attention_bias"},
        {"rms_norm_eps": 1e-5},
        {"hidden_act": ("silu",), "clip_qkv": (None,)},
    ),
    "Olmo2ForCausalLM": Keys("olmo2", frozenset({"attention_bias"}), {"rms_norm_eps": 1e-5}),
    "Olmo3ForCausalLM": Keys(
        "olmo3",
        frozenset({"attention_bias", "sliding_window", "layer_types"}),
        {"sliding_window": 4096, "sliding_window_pattern": 4, "rope_theta": 500000.0, "rms_norm_eps": 1e-5},
    ),
    "SeedOssForCausalLM": Keys(
        "seed_oss",
        frozenset({"attention_bias", "attention_out_bias", "mlp_bias"}),
        {"attention_bias": True, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 524288},
    ),
    "Exaone4ForCausalLM": Keys(
        "exaone4",
        frozenset({"sliding_window", "sliding_window_pattern", "layer_types"}),
        {"sliding_window": 4096, "sliding_window_pattern": 4, "num_key_value_heads": 32, "rms_norm_eps": 1e-5},
    ),
    "GptOssForCausalLM": Keys(
        "gpt_oss",
        experts.KEYS["GptOssForCausalLM"] | {"sliding_window", "layer_types", "attention_bias"},
        _GPT_OSS,
        _GPT_OSS_ONLY,
    ),
    "Glm4MoeForCausalLM": Keys(
        "glm4_moe",
        experts.KEYS["Glm4MoeForCausalLM"] | {"attention_bias", "use_qk_norm", *_PREDICTORS},
        _GLM,
    ),
    "SmolLM3ForCausalLM": Keys(
        "smollm3",
        _WINDOWS | {"attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"},
        {
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
            "num_key_value_heads": 4,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
        },
    ),
}
# Multimodal architectures, and the architecture of their `text_config`.
MULTIMODAL = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
_READ_BY_SOME = frozenset[str]().union(*(keys.reads for keys in KEYS.values()))


def text_config(raw: Mapping[str, Any], source: str) -> Mapping[str, Any] | None:
    """The `config.json` of the text model in a multimodal model, which is served without other modalities; None for
    text-only models. Raises CorruptModel."""
    names = raw.get("architectures")
    architecture = MULTIMODAL.get(str(names[0])) if isinstance(names, list) and names else None
    if architecture is None:
        return None
    tied = {key: raw[key] for key in ("tie_word_embeddings",) if key in raw}  # precedes the text model's own
    return {**mapping(raw, "text_config", source), **tied, "architectures": [architecture]}


def read(raw: Mapping[str, Any], architecture: str, source: str) -> dict[str, Any]:
    """The keys that an architecture reads, with defaults for missing ones. Raises UnsupportedModel."""
    own = KEYS[architecture]
    for key, supported in own.only.items():
        if key in raw and raw[key] not in supported:
            allowed = " or ".join(map(repr, supported))
            raise UnsupportedModel(f"{source}: {key} is {raw[key]!r}; only {allowed} is supported")
    unread = _READ_BY_SOME - own.reads
    return {**own.defaults, **{key: value for key, value in raw.items() if key not in unread}}
