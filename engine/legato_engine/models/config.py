"""A model's configuration, read from `config.json` or GGUF metadata. No tensors, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from legato_engine.errors import CorruptModel, UnsupportedModel
from legato_engine.layers.rotation import Rotation
from legato_engine.models import keys, rope
from legato_engine.models.architectures import ARCHITECTURES
from legato_engine.models.fields import flag, kinds, number, size

_GEMMA = "Gemma3ForCausalLM"
_GGUF_ARCHITECTURES = {each.gguf: name for name, each in reversed(ARCHITECTURES.items()) if each.gguf}


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer's sizes and constants, with Hugging Face's names.

    `rope_scaling` is None for plain rotary embeddings, else one of
    `{"rope_type": "linear", "factor": f}`,
    `{"rope_type": "llama3", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}`,
    `{"rope_type": "yarn", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"}`
    and `"truncate"`, a bool,
    `{"rope_type": "longrope", "short_factor", "long_factor", "original_max_position_embeddings", "attention_factor"}`,
    which `serving` replaces with the next one, and
    `{"rope_type": "factors", "factors": tuple of floats, one for each pair}`, with or without `"attention_factor"`:
    frequencies are divided by them (GGUF files of Llama 3 hold these instead of the four constants).
    """

    architecture: str  # as in config.json's `architectures`
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_length: int
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None
    rms_norm_eps: float
    tie_word_embeddings: bool
    sliding_window: int | None
    attention_bias: bool
    mlp_bias: bool
    full_attention: tuple[int, ...] = ()  # layers without a window, if others have one
    partial_rotary_dim: int | None = None  # numbers at the start of a head that are rotated; None: all
    unrotated_layers: tuple[int, ...] = ()
    local_rope_theta: float | None = None  # of layers with a window, without scaling; None: as others
    attention_scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of the outputs that a block adds to the residual stream
    logits_multiplier: float = 1.0
    norm_offset: float = 0.0  # added to weights of norms

    def window(self, layer: int) -> int | None:
        """Number of positions that a position of this layer attends to, including itself; None: all before it."""
        return None if layer in self.full_attention else self.sliding_window

    def rotation(self, layer: int) -> Rotation | None:
        """The rotary embedding of this layer; None if it has none."""
        if layer in self.unrotated_layers:
            return None
        theta, scaling = self.rope_theta, self.rope_scaling
        if self.local_rope_theta is not None and self.window(layer) is not None:
            theta, scaling = self.local_rope_theta, None
        multiplier = 1.0 if self.attention_scale is None else sqrt(self.attention_scale * sqrt(self.head_dim))
        return Rotation(self.rotary_dim, theta, scaling, multiplier)

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that are rotated."""
        return self.head_dim if self.partial_rotary_dim is None else self.partial_rotary_dim

    def serving(self, max_length: int) -> "ModelConfig":
        """The config for sequences of at most `max_length`. With LongRoPE, all use the same set of factors: sequences
        share the KV of a prefix, which must not depend on their later length."""
        given = self.rope_scaling
        if given is None or given["rope_type"] != "longrope":
            return self
        key = "long_factor" if max_length > given["original_max_position_embeddings"] else "short_factor"
        scaling = {"rope_type": "factors", "factors": given[key], "attention_factor": given["attention_factor"]}
        return replace(self, rope_scaling=scaling)


def from_huggingface(raw: Mapping[str, Any], source: str) -> ModelConfig:
    """The config in a `config.json`. Raises UnsupportedModel or CorruptModel, which name `source` and the key."""
    raw = keys.of_text(raw) or raw
    architecture = _architecture(raw.get("architectures"), source)
    raw = keys.read(raw, architecture, source)
    _check_model_type(raw.get("model_type"), architecture, source)
    hidden, heads = size(raw, "hidden_size", source), size(raw, "num_attention_heads", source)
    layers, head_dim = size(raw, "num_hidden_layers", source), size(raw, "head_dim", source, hidden // heads)
    rotary = rope.from_huggingface(raw, architecture, source)
    unrotated, gemma = _unrotated_layers(raw, layers, source), architecture == _GEMMA
    scaling = rotary.scaling
    windows = flag(raw, "use_sliding_window", source, True) and raw.get("sliding_window") is not None
    window = size(raw, "sliding_window", source) if windows else None
    max_length = size(raw, "max_position_embeddings", source)
    if scaling is not None and scaling["rope_type"] == "yarn":
        max_length = max(max_length, int(scaling["factor"] * scaling["original_max_position_embeddings"]))
    return _checked(
        ModelConfig(
            architecture=architecture,
            layers=layers,
            hidden_size=hidden,
            heads=heads,
            kv_heads=size(raw, "num_key_value_heads", source, heads),
            head_dim=head_dim,
            intermediate_size=size(raw, "intermediate_size", source),
            vocab_size=size(raw, "vocab_size", source),
            max_length=max_length,
            rope_theta=rotary.theta,
            rope_scaling=scaling,
            rms_norm_eps=number(raw, "rms_norm_eps", source, 1e-6),
            tie_word_embeddings=flag(raw, "tie_word_embeddings", source),
            sliding_window=window,
            attention_bias=flag(raw, "attention_bias", source),
            mlp_bias=flag(raw, "mlp_bias", source),
            full_attention=_full_attention(raw, layers, unrotated, window, source),
            partial_rotary_dim=int(head_dim * rotary.partial_factor),
            unrotated_layers=unrotated,
            local_rope_theta=rotary.local_theta,
            attention_scale=_attention_scale(raw, source),
            embedding_multiplier=sqrt(hidden) if gemma else number(raw, "embedding_multiplier", source, 1.0),
            residual_multiplier=number(raw, "residual_multiplier", source, 1.0),
            logits_multiplier=1 / number(raw, "logits_scaling", source, 1.0),
            norm_offset=1.0 if gemma else 0.0,
        ),
        source,
    )


def from_gguf(
    metadata: Mapping[str, Any], tensors: frozenset[str], factors: tuple[float, ...] | None, source: str
) -> ModelConfig:
    """The config in a GGUF's metadata and tensor names. `factors` is its `rope_freqs.weight`, if any."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _GGUF_ARCHITECTURES:
        allowed = ", ".join(_GGUF_ARCHITECTURES)
        raise UnsupportedModel(f"{source}: architecture {name!r} is not supported; supported in GGUF: {allowed}")
    raw = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    if raw.get("expert_count", 0):
        raise UnsupportedModel(f"{source}: mixtures of experts ({raw['expert_count']} experts) are not supported")
    hidden, heads = size(raw, "embedding_length", source), size(raw, "attention.head_count", source)
    head_dim = size(raw, "attention.key_length", source, hidden // heads)
    rotated = size(raw, "rope.dimension_count", source, head_dim)
    _refuse_unsupported_gguf(raw, name, head_dim, rotated, source)
    layers, granite = size(raw, "block_count", source), raw if name == "granite" else {}
    gemma, window = name == "gemma3", "attention.sliding_window"
    # llama.cpp reads no window for other architectures; 0 is none.
    windows = size(raw, window, source) if name in ("phi3", "gemma3") and raw.get(window) else None
    pattern = {"sliding_window_pattern": raw.get("attention.sliding_window_pattern", 6)} if gemma else {}
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocab = len(tokens) if isinstance(tokens, list) else None
    return _checked(
        ModelConfig(
            architecture=_GGUF_ARCHITECTURES[name],
            layers=layers,
            hidden_size=hidden,
            heads=heads,
            kv_heads=size(raw, "attention.head_count_kv", source, heads),
            head_dim=head_dim,
            intermediate_size=size(raw, "feed_forward_length", source),
            vocab_size=size(raw, "vocab_size", source, vocab),
            max_length=size(raw, "context_length", source),
            rope_theta=number(raw, "rope.freq_base", source, 10000.0),
            rope_scaling=rope.from_gguf(raw, factors, head_dim, source),
            rms_norm_eps=number(raw, "attention.layer_norm_rms_epsilon", source),
            tie_word_embeddings="output.weight" not in tensors,
            sliding_window=windows,
            full_attention=_full_attention(pattern, layers, (), windows, source),
            local_rope_theta=number(raw, "rope.freq_base_swa", source, 10000.0) if gemma else None,
            partial_rotary_dim=rotated,
            attention_bias="blk.0.attn_output.bias" in tensors,
            mlp_bias="blk.0.ffn_up.bias" in tensors,
            unrotated_layers=tuple(range(3, layers, 4)) if name == "smollm3" else (),  # GGUF has no key for them
            attention_scale=_attention_scale_of_gguf(raw, name, head_dim, source),
            embedding_multiplier=sqrt(hidden) if gemma else number(granite, "embedding_scale", source, 1.0),
            residual_multiplier=number(granite, "residual_scale", source, 1.0),
            logits_multiplier=1 / number(granite, "logit_scale", source, 1.0),
        ),
        source,
    )


def _refuse_unsupported_gguf(raw: Mapping[str, Any], name: str, head_dim: int, rotated: int, source: str) -> None:
    """Raises UnsupportedModel for values that llama.cpp computes with and Legato does not."""
    if rotated != head_dim and name != "phi3":
        raise UnsupportedModel(f"{source}: rotary embeddings of a part of head_dim {head_dim} are not supported")
    if raw.get("attention.value_length", head_dim) != head_dim:
        lengths = f"attention.value_length {raw['attention.value_length']} with keys of {head_dim}"
        raise UnsupportedModel(f"{source}: {lengths} is not supported")
    if raw.get("rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{source}: rope.scaling.attn_factor {raw['rope.scaling.attn_factor']} is not supported")
    if raw.get("rope.scaling.finetuned", True) is False and name == "granite":
        raise UnsupportedModel(
            f"{source}: a granite without rotary embeddings (rope.scaling.finetuned) is not supported"
        )
    if raw.get("attention.sliding_window") and name == "olmo2":
        raise UnsupportedModel(f"{source}: attention.sliding_window (OLMo 3) is not supported")
    if raw.get("final_logit_softcapping") and name == "gemma3":
        raise UnsupportedModel(f"{source}: final_logit_softcapping is not supported")


def _architecture(names: object, source: str) -> str:
    for name in names if isinstance(names, list) else ():
        if str(name) in ARCHITECTURES:
            return str(name)
    supported = ", ".join((*ARCHITECTURES, *keys.MULTIMODAL))
    raise UnsupportedModel(f"{source}: architectures {names!r} are not supported; supported: {supported}")


def _check_model_type(given: object, architecture: str, source: str) -> None:
    """Raises UnsupportedModel if `model_type`, which transformers uses, contradicts `architectures`."""
    known = [each.model_type for each in keys.KEYS.values()]
    if given in known and given != keys.KEYS[architecture].model_type:
        raise UnsupportedModel(f"{source}: model_type {given!r} contradicts architectures [{architecture!r}]")


def _full_attention(
    raw: Mapping[str, Any], layers: int, unrotated: tuple[int, ...], window: int | None, source: str
) -> tuple[int, ...]:
    """Layers without a window: those that `layer_types` names, or the first `max_window_layers` (Qwen), every
    `sliding_window_pattern`-th (Gemma), or all layers with a rotary embedding (SmolLM3)."""
    types = kinds(raw, "layer_types", layers, source, "full_attention", "sliding_attention")
    if types is None and "sliding_window_pattern" in raw:
        pattern = size(raw, "sliding_window_pattern", source)
        types = ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers)]
    if types is not None and window is None and "sliding_attention" in types:
        raise UnsupportedModel(f"{source}: layers have sliding_attention, but no window is set (sliding_window)")
    if window is None:
        return ()
    if types is not None:
        return tuple([layer for layer, kind in enumerate(types) if kind == "full_attention"])
    if raw.get("max_window_layers"):
        return tuple(range(min(layers, size(raw, "max_window_layers", source))))
    if "no_rope_layer_interval" in raw:
        return tuple([layer for layer in range(layers) if layer not in unrotated])
    return ()


def _unrotated_layers(raw: Mapping[str, Any], layers: int, source: str) -> tuple[int, ...]:
    """Layers without a rotary embedding: those with a 0 in `no_rope_layers`, or the last one of each interval."""
    if "no_rope_layer_interval" not in raw:  # only SmolLM3 reads it
        return ()
    rotated = raw.get("no_rope_layers")
    listed = rotated[:layers] if isinstance(rotated, list) else rotated  # may be longer, as in transformers
    if (flags := kinds({"no_rope_layers": listed}, "no_rope_layers", layers, source, 0, 1)) is not None:
        return tuple([layer for layer, rotates in enumerate(flags) if not rotates])
    interval = size(raw, "no_rope_layer_interval", source)
    return tuple(range(interval - 1, layers, interval))


def _attention_scale(raw: Mapping[str, Any], source: str) -> float | None:
    """From Granite's `attention_multiplier` or Gemma's `query_pre_attn_scalar`."""
    if "attention_multiplier" in raw:
        return number(raw, "attention_multiplier", source)
    if "query_pre_attn_scalar" in raw:
        return 1 / sqrt(number(raw, "query_pre_attn_scalar", source))
    return None


def _attention_scale_of_gguf(raw: Mapping[str, Any], name: str, head_dim: int, source: str) -> float | None:
    """From Granite's key. Gemma has none: its 27B, known by the number of layers, scales unlike the others."""
    if name == "gemma3":
        largest = raw["block_count"] == 62
        return 1 / sqrt(raw["embedding_length"] // raw["attention.head_count"] if largest else head_dim)
    if name == "granite" and raw.get("attention.scale"):
        return number(raw, "attention.scale", source)
    return None


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    if config.heads % config.kv_heads:
        raise CorruptModel(f"{source}: {config.heads} heads cannot share {config.kv_heads} KV heads evenly")
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        allowed = f"an even number up to head_dim, {config.head_dim}, is needed"
        raise CorruptModel(f"{source}: rotary embeddings have {config.rotary_dim} dimensions; {allowed}")
    for key in ("short_factor", "long_factor"):
        if len((config.rope_scaling or {}).get(key, ())) not in (0, config.rotary_dim // 2):
            count, needed = len((config.rope_scaling or {})[key]), config.rotary_dim // 2
            raise CorruptModel(f"{source}: {key} has {count} numbers; {needed} are needed")
    return config
