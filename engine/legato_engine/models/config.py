"""A model's configuration, and its form in a `config.json`. No tensors, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from legato_engine.errors import CorruptModel, UnsupportedModel
from legato_engine.layers.rotation import Rotation
from legato_engine.models.architectures import ARCHITECTURES
from legato_engine.models.hyperparameters import experts, keys, rope
from legato_engine.models.hyperparameters.experts import ExpertsConfig
from legato_engine.models.hyperparameters.fields import count, flag, kinds, number, size

_GEMMA, _EXAONE = "Gemma3ForCausalLM", "Exaone4ForCausalLM"


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
    experts: ExpertsConfig | None = None  # None: all layers have an MLP
    attention_out_bias: bool = False  # of the output only, in architectures whose config separates both
    qk_norm: bool = False  # RMSNorms of queries and keys, in architectures whose config decides it
    predictor_layers: int = 0  # layers after the last one that predict further tokens; their weights are not read

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
    def inner_sizes(self) -> Mapping[str, int]:
        """Sizes between the projections of MLPs and experts, by their names in errors."""
        sizes = {"intermediate_size": self.intermediate_size}
        if self.experts is None:
            return sizes
        experts = {"intermediate size of experts": self.experts.inner}
        if self.experts.shared_inner is not None:
            experts["intermediate size of shared experts"] = self.experts.shared_inner
        return experts | sizes if self.experts.dense_layers else experts

    @property
    def predictors(self) -> range:
        """The numbers of the `predictor_layers` in names of weights."""
        return range(self.layers, self.layers + self.predictor_layers)

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
    raw = keys.text_config(raw, source) or raw
    architecture = _architecture(raw.get("architectures"), source)
    raw = keys.read(raw, architecture, source)
    _check_model_type(raw.get("model_type"), architecture, source)
    hidden, heads = size(raw, "hidden_size", source), size(raw, "num_attention_heads", source)
    layers, head_dim = size(raw, "num_hidden_layers", source), size(raw, "head_dim", source, hidden // heads)
    rotary = rope.from_huggingface(raw, architecture, source)
    gemma = architecture == _GEMMA
    scaling = rotary.scaling
    windows = flag(raw, "use_sliding_window", source, True) and raw.get("sliding_window") is not None
    window = size(raw, "sliding_window", source) if windows else None
    unrotated = _unrotated_layers(raw, layers, source)
    full = full_attention(raw, layers, unrotated, window, source)
    max_length = size(raw, "max_position_embeddings", source)
    if scaling is not None and scaling["rope_type"] == "yarn":
        max_length = max(max_length, int(scaling["factor"] * scaling["original_max_position_embeddings"]))
    return checked(
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
            full_attention=full,
            partial_rotary_dim=int(head_dim * rotary.partial_factor),
            unrotated_layers=full if architecture == _EXAONE else unrotated,
            local_rope_theta=rotary.local_theta,
            attention_scale=_attention_scale(raw, source),
            embedding_multiplier=sqrt(hidden) if gemma else number(raw, "embedding_multiplier", source, 1.0),
            residual_multiplier=number(raw, "residual_multiplier", source, 1.0),
            logits_multiplier=1 / number(raw, "logits_scaling", source, 1.0),
            norm_offset=1.0 if gemma else 0.0,
            experts=experts.from_huggingface(raw, architecture, layers, source),
            attention_out_bias=flag(raw, "attention_out_bias", source),
            qk_norm=flag(raw, "use_qk_norm", source),
            predictor_layers=_predictor_layers(raw, source),
        ),
        source,
    )


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


def full_attention(
    raw: Mapping[str, Any], layers: int, unrotated: tuple[int, ...], window: int | None, source: str
) -> tuple[int, ...]:
    """Layers without a window: those that `layer_types` names, or the first `max_window_layers` (Qwen), every
    `sliding_window_pattern`-th (Gemma; Qwen2-MoE, of the first `max_window_layers`), or all layers with a rotary
    embedding (SmolLM3)."""
    types = kinds(raw, "layer_types", layers, source, "full_attention", "sliding_attention")
    if types is None and "sliding_window_pattern" in raw and flag(raw, "use_sliding_window", source, True):
        pattern, most = size(raw, "sliding_window_pattern", source), size(raw, "max_window_layers", source, layers)
        local = [bool((layer + 1) % pattern) and layer < most for layer in range(layers)]
        types = ["sliding_attention" if each else "full_attention" for each in local]
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


def _predictor_layers(raw: Mapping[str, Any], source: str) -> int:
    """From either name of the key; 0 in architectures without."""
    return max(count(raw, key, source) for key in ("num_mtp_layers", "num_nextn_predict_layers"))


def _attention_scale(raw: Mapping[str, Any], source: str) -> float | None:
    """From Granite's `attention_multiplier` or Gemma's `query_pre_attn_scalar`."""
    if "attention_multiplier" in raw:
        return number(raw, "attention_multiplier", source)
    if "query_pre_attn_scalar" in raw:
        return 1 / sqrt(number(raw, "query_pre_attn_scalar", source))
    return None


def checked(config: ModelConfig, source: str) -> ModelConfig:
    """Returns `config`. Raises CorruptModel if its numbers contradict each other."""
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
