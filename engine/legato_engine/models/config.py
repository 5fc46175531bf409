"""A model's configuration, read from `config.json` or GGUF metadata. No tensors, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log
from typing import Any

from legato_engine.errors import CorruptModel, UnsupportedModel
from legato_engine.models.architectures import ARCHITECTURES

ROPE_SCALINGS = {  # supported types in a config.json, and the numbers that each requires
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}
# Keys that only some architectures read, as in transformers. Others ignore them.
_QWEN_WINDOWS = frozenset({"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"})
_READ: dict[str, frozenset[str]] = {
    "LlamaForCausalLM": frozenset({"attention_bias", "mlp_bias"}),
    "MistralForCausalLM": frozenset({"sliding_window"}),
    "Qwen2ForCausalLM": _QWEN_WINDOWS,
    "Qwen3ForCausalLM": _QWEN_WINDOWS | {"attention_bias"},
}
_READ_BY_SOME = frozenset[str]().union(*_READ.values())
_MODEL_TYPES = {name: name.removesuffix("ForCausalLM").lower() for name in ARCHITECTURES}
# Transformers' defaults where a config.json has no value, if they differ from Llama's.
_QWEN = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28, "num_key_value_heads": 32}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"sliding_window": 4096, "num_key_value_heads": 8},
    "Qwen2ForCausalLM": _QWEN,
    "Qwen3ForCausalLM": _QWEN | {"head_dim": 128},
}
_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer's sizes and constants, with Hugging Face's names.

    `rope_scaling` is None for plain rotary embeddings, else one of
    `{"rope_type": "linear", "factor": f}`,
    `{"rope_type": "llama3", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}`,
    `{"rope_type": "yarn", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"}`
    and `"truncate"`, a bool, or
    `{"rope_type": "factors", "factors": tuple of head_dim/2 floats}`: inverse frequencies are divided by them (GGUF
    files of Llama 3 hold these instead of the four constants).
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
    full_attention_layers: int = 0  # number of first layers without a window

    def window(self, layer: int) -> int | None:
        """Number of positions that a position of this layer attends to, including itself; None: all before it."""
        return None if layer < self.full_attention_layers else self.sliding_window


def from_huggingface(raw: Mapping[str, Any], source: str) -> ModelConfig:
    """The config in a `config.json`. Raises UnsupportedModel or CorruptModel, which name `source` and the key."""
    architecture = _architecture(raw.get("architectures"), source)
    unread = _READ_BY_SOME - _READ[architecture]
    raw = _DEFAULTS.get(architecture, {}) | {key: value for key, value in raw.items() if key not in unread}
    _check_model_type(raw.get("model_type"), architecture, source)
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{source}: hidden_act is {raw['hidden_act']!r}; only 'silu' is supported")
    hidden, heads = _size(raw, "hidden_size", source), _size(raw, "num_attention_heads", source)
    theta, scaling = _huggingface_rope(raw, source)
    window = _window(raw, "sliding_window", source) if raw.get("use_sliding_window", True) else None
    max_length = _size(raw, "max_position_embeddings", source)
    if scaling is not None and scaling["rope_type"] == "yarn":
        max_length = max(max_length, int(scaling["factor"] * scaling["original_max_position_embeddings"]))
    return _checked(
        ModelConfig(
            architecture=architecture,
            layers=_size(raw, "num_hidden_layers", source),
            hidden_size=hidden,
            heads=heads,
            kv_heads=_size(raw, "num_key_value_heads", source, heads),
            head_dim=_size(raw, "head_dim", source, hidden // heads),
            intermediate_size=_size(raw, "intermediate_size", source),
            vocab_size=_size(raw, "vocab_size", source),
            max_length=max_length,
            rope_theta=theta,
            rope_scaling=scaling,
            rms_norm_eps=_number(raw, "rms_norm_eps", source, 1e-6),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            sliding_window=window,
            attention_bias=bool(raw.get("attention_bias", False)),
            mlp_bias=bool(raw.get("mlp_bias", False)),
            full_attention_layers=_full_attention_layers(raw, window, source),
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
    hidden, heads = _size(raw, "embedding_length", source), _size(raw, "attention.head_count", source)
    head_dim = _size(raw, "attention.key_length", source, hidden // heads)
    if raw.get("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel(f"{source}: rotary embeddings of a part of head_dim {head_dim} are not supported")
    if raw.get("attention.value_length", head_dim) != head_dim:
        lengths = f"attention.value_length {raw['attention.value_length']} with keys of {head_dim}"
        raise UnsupportedModel(f"{source}: {lengths} is not supported")
    if raw.get("rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{source}: rope.scaling.attn_factor {raw['rope.scaling.attn_factor']} is not supported")
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocab = len(tokens) if isinstance(tokens, list) else None
    return _checked(
        ModelConfig(
            architecture=_GGUF_ARCHITECTURES[name],
            layers=_size(raw, "block_count", source),
            hidden_size=hidden,
            heads=heads,
            kv_heads=_size(raw, "attention.head_count_kv", source, heads),
            head_dim=head_dim,
            intermediate_size=_size(raw, "feed_forward_length", source),
            vocab_size=_size(raw, "vocab_size", source, vocab),
            max_length=_size(raw, "context_length", source),
            rope_theta=_number(raw, "rope.freq_base", source, 10000.0),
            rope_scaling=_gguf_scaling(raw, factors, head_dim, source),
            rms_norm_eps=_number(raw, "attention.layer_norm_rms_epsilon", source),
            tie_word_embeddings="output.weight" not in tensors,
            sliding_window=None,  # llama.cpp reads no window for these architectures
            attention_bias="blk.0.attn_output.bias" in tensors,
            mlp_bias="blk.0.ffn_up.bias" in tensors,
        ),
        source,
    )


def _architecture(names: object, source: str) -> str:
    known = ARCHITECTURES
    for name in names if isinstance(names, list) else ():
        if name in known:
            return str(name)
    raise UnsupportedModel(f"{source}: architectures {names!r} are not supported; supported: {', '.join(known)}")


def _check_model_type(given: object, architecture: str, source: str) -> None:
    """Raises UnsupportedModel if `model_type`, which transformers uses, contradicts `architectures`."""
    if given in _MODEL_TYPES.values() and given != _MODEL_TYPES[architecture]:
        raise UnsupportedModel(f"{source}: model_type {given!r} contradicts architectures [{architecture!r}]")


def _huggingface_rope(raw: Mapping[str, Any], source: str) -> tuple[float, dict[str, Any] | None]:
    """Returns theta and scaling, from `rope_theta` and `rope_scaling`, or from `rope_parameters` of newer files."""
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise CorruptModel(f"{source}: rope_scaling is {given!r}; an object is needed")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise UnsupportedModel(
            f"{source}: rope_parameters for each kind of layer are not supported: {', '.join(given)}"
        )
    length = _size(raw, "max_position_embeddings", source)
    scaling = {"original_max_position_embeddings": length} | dict(given)
    if raw.get("original_max_position_embeddings") is not None:
        scaling["original_max_position_embeddings"] = raw["original_max_position_embeddings"]
    theta = scaling.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0
    kind = scaling.pop("rope_type", None) or scaling.pop("type", "default")
    if kind == "default":
        return float(theta), None
    if kind not in ROPE_SCALINGS:
        allowed = ", ".join(ROPE_SCALINGS)
        raise UnsupportedModel(f"{source}: rope type {kind!r} is not supported; supported: default, {allowed}")
    part = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if part not in (None, 1):
        raise UnsupportedModel(f"{source}: partial_rotary_factor {part!r} with rope type {kind!r} is not supported")
    numbers = {key: _number(scaling, key, source) for key in ROPE_SCALINGS[kind]}
    if kind == "yarn":
        numbers |= _yarn(scaling, numbers["factor"], source)
    return float(theta), {"rope_type": kind} | numbers


def _yarn(given: Mapping[str, Any], factor: float, source: str) -> dict[str, Any]:
    """YaRN's numbers, with transformers' defaults for missing ones."""
    if given.get("attention_factor") is not None:
        attention = _number(given, "attention_factor", source)
    elif given.get("mscale") and given.get("mscale_all_dim"):
        scales = [_mscale(factor, _number(given, key, source)) for key in ("mscale", "mscale_all_dim")]
        attention = scales[0] / scales[1]
    else:
        attention = _mscale(factor, 1.0)
    return {
        "original_max_position_embeddings": _number(given, "original_max_position_embeddings", source),
        "beta_fast": _number(given, "beta_fast", source, 32.0),
        "beta_slow": _number(given, "beta_slow", source, 1.0),
        "attention_factor": attention,
        "truncate": bool(given.get("truncate", True)),
    }


def _mscale(factor: float, share: float) -> float:
    return 0.1 * share * log(factor) + 1.0 if factor > 1 else 1.0


def _gguf_scaling(
    raw: Mapping[str, Any], factors: tuple[float, ...] | None, head_dim: int, source: str
) -> dict[str, Any] | None:
    """The scaling as llama.cpp interprets it: a factor without a type is linear; `factors` multiply it."""
    given = {"factor": raw.get("rope.scaling.factor", raw.get("rope.scale_linear"))}
    kind = raw.get("rope.scaling.type", "none" if given["factor"] is None else "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"{source}: rope scaling {kind!r} is not supported; supported: none, linear, rope_freqs")
    factor = _number(given, "factor", f"{source}: rope.scaling") if kind == "linear" else 1.0
    if factors is not None:
        if len(factors) != head_dim // 2 or not all(0 < one < inf for one in factors):
            raise CorruptModel(f"{source}: rope_freqs.weight is {factors}; {head_dim // 2} numbers above 0 are needed")
        return {"rope_type": "factors", "factors": tuple(factor * one for one in factors)}
    return None if kind == "none" else {"rope_type": "linear", "factor": factor}


def _size(raw: Mapping[str, Any], key: str, source: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CorruptModel(f"{source}: {key} is {value!r}; a whole number above 0 is needed")
    return value


def _window(raw: Mapping[str, Any], key: str, source: str) -> int | None:
    return _size(raw, key, source) if raw.get(key) else None


def _full_attention_layers(raw: Mapping[str, Any], window: int | None, source: str) -> int:
    """Returns the number of layers before the first with a window: by `layer_types`, or Qwen's `max_window_layers`."""
    kinds = raw.get("layer_types")
    if not isinstance(kinds, list):
        return _size(raw, "max_window_layers", source) if window and raw.get("max_window_layers") else 0
    layers = _size(raw, "num_hidden_layers", source)
    if len(kinds) != layers:
        raise CorruptModel(f"{source}: layer_types has {len(kinds)} entries for {layers} layers")
    if window is None and set(kinds) != {"full_attention"}:
        raise UnsupportedModel(f"{source}: layer_types name {sorted(set(kinds))}, but no window is set")
    full = kinds.index("sliding_attention") if "sliding_attention" in kinds else len(kinds)
    if set(kinds[full:]) - {"sliding_attention"} or set(kinds[:full]) - {"full_attention"}:
        raise UnsupportedModel(f"{source}: layer_types with windows in between, or of other kinds, are not supported")
    return full


def _number(raw: Mapping[str, Any], key: str, source: str, default: float | None = None) -> float:
    value = raw.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise CorruptModel(f"{source}: {key} is {value!r}; a number above 0 is needed")
    return float(value)


def _checked(config: ModelConfig, source: str) -> ModelConfig:
    if config.heads % config.kv_heads:
        raise CorruptModel(f"{source}: {config.heads} heads cannot share {config.kv_heads} KV heads evenly")
    if config.head_dim % 2:
        raise CorruptModel(f"{source}: head_dim is {config.head_dim}; rotary embeddings need an even one")
    return config
