"""A model's configuration in GGUF metadata, as llama.cpp interprets it. No tensors, no torch."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

from legato_engine.errors import UnsupportedModel
from legato_engine.models.architectures import ARCHITECTURES
from legato_engine.models.config import ModelConfig, checked, full_attention
from legato_engine.models.hyperparameters import experts, rope
from legato_engine.models.hyperparameters.fields import count, number, size

# The first architecture of those with one name in GGUF: Mistral is a `llama` there, and so is Mixtral.
_ARCHITECTURES = {each.gguf: name for name, each in reversed(ARCHITECTURES.items()) if each.gguf}
_WINDOW_PATTERNS = {"gemma3": 6, "gpt-oss": 2}  # llama.cpp's defaults
_GRANITE = ("granite", "granitemoe")
_GLM = "glm4moe"
_BIASED_INPUTS = (_GLM, "seed_oss")  # attention's inputs may have biases without its output


def read(
    metadata: Mapping[str, Any], tensors: frozenset[str], factors: Mapping[str, tuple[float, ...]], source: str
) -> ModelConfig:
    """The config in the metadata and tensor names of a GGUF file; `factors` are its tensors in `rope.GGUF_FACTORS`.

    Raises UnsupportedModel or CorruptModel, which name `source` and the key."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        allowed = ", ".join(_ARCHITECTURES)
        raise UnsupportedModel(f"{source}: architecture {name!r} is not supported; supported in GGUF: {allowed}")
    raw = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    architecture = _ARCHITECTURES[name]
    if name == "llama" and raw.get("expert_count"):
        architecture = "MixtralForCausalLM"
    hidden, heads = size(raw, "embedding_length", source), size(raw, "attention.head_count", source)
    head_dim = size(raw, "attention.key_length", source, hidden // heads)
    rotated = size(raw, "rope.dimension_count", source, head_dim)
    _refuse_unsupported(raw, name, tensors, head_dim, rotated, source)
    predictors = count(raw, "nextn_predict_layers", source) if name == _GLM else 0
    layers, granite = size(raw, "block_count", source) - predictors, raw if name in _GRANITE else {}
    gemma, window = name == "gemma3", "attention.sliding_window"
    # llama.cpp reads no window for other architectures; 0 is none.
    windows = size(raw, window, source) if name in ("phi3", *_WINDOW_PATTERNS) and raw.get(window) else None
    pattern = {"sliding_window_pattern": each} if (each := _pattern(raw, name)) is not None else {}
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocab = len(tokens) if isinstance(tokens, list) else None
    return checked(
        ModelConfig(
            architecture=architecture,
            layers=layers,
            hidden_size=hidden,
            heads=heads,
            kv_heads=size(raw, "attention.head_count_kv", source, heads),
            head_dim=head_dim,
            intermediate_size=size(raw, "feed_forward_length", source),
            vocab_size=size(raw, "vocab_size", source, vocab),
            max_length=size(raw, "context_length", source),
            rope_theta=number(raw, "rope.freq_base", source, 10000.0),
            rope_scaling=rope.from_gguf(raw, name, factors, rotated, source),
            rms_norm_eps=number(raw, "attention.layer_norm_rms_epsilon", source),
            tie_word_embeddings="output.weight" not in tensors,
            sliding_window=windows,
            full_attention=full_attention(pattern, layers, (), windows, source),
            local_rope_theta=number(raw, "rope.freq_base_swa", source, 10000.0) if gemma else None,
            partial_rotary_dim=rotated,
            attention_bias=f"blk.0.attn_{'q' if name in _BIASED_INPUTS else 'output'}.bias" in tensors,
            mlp_bias="blk.0.ffn_up.bias" in tensors,
            unrotated_layers=tuple(range(3, layers, 4)) if name == "smollm3" else (),  # GGUF has no key for them
            attention_scale=_attention_scale(raw, name, head_dim, source),
            embedding_multiplier=sqrt(hidden) if gemma else number(granite, "embedding_scale", source, 1.0),
            residual_multiplier=number(granite, "residual_scale", source, 1.0),
            logits_multiplier=1 / number(granite, "logit_scale", source, 1.0),
            experts=experts.from_gguf(raw, architecture, source),
            attention_out_bias=name == "seed_oss" and "blk.0.attn_output.bias" in tensors,
            qk_norm=name == _GLM and "blk.0.attn_q_norm.weight" in tensors,
            predictor_layers=predictors,
        ),
        source,
    )


def _pattern(raw: Mapping[str, Any], name: str) -> object:
    """Every layer of this number has no window; None if all layers are alike."""
    default = _WINDOW_PATTERNS.get(name)
    return default and raw.get("attention.sliding_window_pattern", default)


def _refuse_unsupported(
    raw: Mapping[str, Any], name: str, tensors: frozenset[str], head_dim: int, rotated: int, source: str
) -> None:
    """Raises UnsupportedModel for values that llama.cpp computes with and Legato does not."""
    if rotated != head_dim and name not in ("phi3", _GLM):
        raise UnsupportedModel(f"{source}: rotary embeddings of a part of head_dim {head_dim} are not supported")
    if raw.get("attention.value_length", head_dim) != head_dim:
        lengths = f"attention.value_length {raw['attention.value_length']} with keys of {head_dim}"
        raise UnsupportedModel(f"{source}: {lengths} is not supported")
    if raw.get("rope.scaling.attn_factor", 1.0) != 1.0 and tensors.isdisjoint(rope.GGUF_LONGROPE):
        raise UnsupportedModel(f"{source}: rope.scaling.attn_factor {raw['rope.scaling.attn_factor']} is not supported")
    if raw.get("rope.scaling.finetuned", True) is False and name in _GRANITE:
        raise UnsupportedModel(
            f"{source}: a granite without rotary embeddings (rope.scaling.finetuned) is not supported"
        )
    if raw.get("attention.sliding_window") and name == "olmo2":
        raise UnsupportedModel(f"{source}: attention.sliding_window (OLMo 3) is not supported")
    if raw.get("final_logit_softcapping") and name == "gemma3":
        raise UnsupportedModel(f"{source}: final_logit_softcapping is not supported")


def _attention_scale(raw: Mapping[str, Any], name: str, head_dim: int, source: str) -> float | None:
    """From Granite's key. Gemma has none: its 27B, known by the number of layers, scales unlike the others."""
    if name == "gemma3":
        largest = raw["block_count"] == 62
        return 1 / sqrt(raw["embedding_length"] // raw["attention.head_count"] if largest else head_dim)
    if name in _GRANITE and raw.get("attention.scale"):
        return number(raw, "attention.scale", source)
    return None
