"""Rotary settings of a model, as transformers and llama.cpp interpret them. No torch."""

from collections.abc import Mapping
from math import inf, log, sqrt
from typing import Any, NamedTuple

from legato_engine.errors import CorruptModel, UnsupportedModel
from legato_engine.models.hyperparameters.fields import flag, mapping, number, numbers, size

SCALINGS = {  # supported types in a config.json, and the numbers that each requires
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
    "longrope": ("original_max_position_embeddings",),
}
_PHI = "Phi3ForCausalLM"
_OLMO3 = "Olmo3ForCausalLM"
_PARTIAL = (_PHI, "Glm4MoeForCausalLM")  # others ignore `partial_rotary_factor`
_BY_FREQUENCY, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
GGUF_LONGROPE = (_LONG, _SHORT)  # tensors of a GGUF file of Phi-3 or 4
GGUF_FACTORS = (_BY_FREQUENCY, *GGUF_LONGROPE)


class Rope(NamedTuple):
    """Settings of `ModelConfig`: `scaling` is its `rope_scaling`, `local_theta` its `local_rope_theta`, and
    `partial_factor` the share of a head that is rotated."""

    theta: float
    scaling: dict[str, Any] | None
    partial_factor: float = 1.0
    local_theta: float | None = None


def from_huggingface(raw: Mapping[str, Any], architecture: str, source: str) -> Rope:
    """Reads `rope_theta` and `rope_scaling`, or `rope_parameters` of newer files. Raises UnsupportedModel or
    CorruptModel, which name `source` and the key."""
    if "rope_local_base_freq" in raw or architecture == _OLMO3:  # only Gemma reads that key
        return _for_two_kinds(raw, source)
    return _for_one_kind(raw, architecture, source)


def _for_two_kinds(raw: Mapping[str, Any], source: str) -> Rope:
    """Settings of layers without a window, and the base of layers with one: in `rope_parameters` by kind of layer, or
    in `rope_scaling` and `rope_local_base_freq`, without which both have the same base."""
    by_kind = raw.get("rope_parameters") or {}
    if not isinstance(by_kind, Mapping) or set(by_kind) - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(
            f"{source}: rope_parameters are {by_kind!r}; supported: an object for full_attention and sliding_attention"
        )
    base = raw.get("rope_local_base_freq", raw.get("rope_theta"))
    local = {"rope_theta": base, **mapping(by_kind, "sliding_attention", source)}
    if (kind := local.get("rope_type", local.get("type", "default"))) != "default":
        raise UnsupportedModel(
            f"{source}: rope type {kind!r} of sliding_attention is not supported; supported: default"
        )
    full = {**mapping(by_kind, "full_attention", source), **mapping(raw, "rope_scaling", source)}
    rope = _for_one_kind({**raw, "rope_scaling": full, "rope_parameters": None}, "", source)
    return rope._replace(local_theta=number(local, "rope_theta", source))


def _for_one_kind(raw: Mapping[str, Any], architecture: str, source: str) -> Rope:
    given = mapping(raw, "rope_scaling", source) or mapping(raw, "rope_parameters", source)
    if any(isinstance(value, Mapping) for value in given.values()):
        raise UnsupportedModel(
            f"{source}: rope_parameters for each kind of layer are not supported: {', '.join(given)}"
        )
    length = size(raw, "max_position_embeddings", source)
    scaling = {"original_max_position_embeddings": length} | dict(given)
    if raw.get("original_max_position_embeddings") is not None:
        scaling["original_max_position_embeddings"] = raw["original_max_position_embeddings"]
    theta = number({"rope_theta": raw.get("rope_theta", 10000.0)} | scaling, "rope_theta", source)
    kind = str(scaling.pop("rope_type", None) or scaling.pop("type", "default"))
    is_phi = architecture == _PHI
    if is_phi and kind in ("su", "yarn"):  # earlier names
        kind = "longrope"
    supported = ("default", "longrope") if is_phi else ("default", *SCALINGS)
    if kind not in supported:
        raise UnsupportedModel(f"{source}: rope type {kind!r} is not supported; supported: {', '.join(supported)}")
    part = scaling.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    rotated = 1.0
    if architecture in _PARTIAL and part is not None:
        rotated = number({"partial_rotary_factor": part}, "partial_rotary_factor", source)
    elif part not in (None, 1) and kind != "default":
        raise UnsupportedModel(f"{source}: partial_rotary_factor {part!r} with rope type {kind!r} is not supported")
    if kind == "default":
        return Rope(theta, None, rotated)
    values: dict[str, Any] = {key: number(scaling, key, source) for key in SCALINGS[kind]}
    if kind == "yarn":
        values |= _yarn(scaling, values["factor"], source)
    if kind == "longrope":
        values |= _longrope(scaling, length, source)
    return Rope(theta, {"rope_type": kind} | values, rotated)


def _yarn(given: Mapping[str, Any], factor: float, source: str) -> dict[str, Any]:
    """YaRN's numbers, with transformers' defaults for missing ones."""
    if given.get("attention_factor") is not None:
        attention = number(given, "attention_factor", source)
    elif given.get("mscale") and given.get("mscale_all_dim"):
        scales = [_mscale(factor, number(given, key, source)) for key in ("mscale", "mscale_all_dim")]
        attention = scales[0] / scales[1]
    else:
        attention = _mscale(factor, 1.0)
    return {
        "original_max_position_embeddings": number(given, "original_max_position_embeddings", source),
        "beta_fast": number(given, "beta_fast", source, 32.0),
        "beta_slow": number(given, "beta_slow", source, 1.0),
        "attention_factor": attention,
        "truncate": flag(given, "truncate", source, True),
    }


def _mscale(factor: float, share: float) -> float:
    return 0.1 * share * log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(given: Mapping[str, Any], length: int, source: str) -> dict[str, Any]:
    if (original := number(given, "original_max_position_embeddings", source)) <= 1:
        raise CorruptModel(f"{source}: original_max_position_embeddings is {original}; a number above 1 is needed")
    if given.get("attention_factor") is not None:
        attention = number(given, "attention_factor", source)
    else:
        factor = number(given, "factor", source) if given.get("factor") is not None else length / original
        attention = sqrt(1 + log(factor) / log(original)) if factor > 1 else 1.0
    factors = {key: numbers(given, key, source) for key in ("short_factor", "long_factor")}
    return {**factors, "attention_factor": attention}


def from_gguf(
    raw: Mapping[str, Any], name: str, factors: Mapping[str, tuple[float, ...]], rotated: int, source: str
) -> dict[str, Any] | None:
    """The scaling as llama.cpp interprets it: a factor without a type is linear; factors by frequency multiply it.

    `name` is llama.cpp's architecture: YaRN is read for gpt-oss. `factors` are the file's tensors in GGUF_FACTORS, one
    number for each pair of the `rotated` numbers of a head. Raises UnsupportedModel or CorruptModel."""
    for tensor, values in factors.items():
        if len(values) != rotated // 2 or not all(0 < one < inf for one in values):
            raise CorruptModel(f"{source}: {tensor} is {values}; {rotated // 2} numbers above 0 are needed")
    if not factors.keys().isdisjoint(GGUF_LONGROPE):
        return _longrope_of_gguf(raw, factors, source)
    given = {"factor": raw.get("rope.scaling.factor", raw.get("rope.scale_linear"))}
    kind = raw.get("rope.scaling.type", "none" if given["factor"] is None else "linear")
    if kind == "yarn" and name == "gpt-oss" and not factors:
        return _yarn_of_gguf(raw, source)
    if kind not in ("none", "linear"):
        supported = ", ".join(("none", "linear", *GGUF_FACTORS))
        raise UnsupportedModel(f"{source}: rope scaling {kind!r} is not supported; supported: {supported}")
    factor = number(given, "factor", f"{source}: rope.scaling") if kind == "linear" else 1.0
    if _BY_FREQUENCY in factors:
        return {"rope_type": "factors", "factors": tuple(factor * one for one in factors[_BY_FREQUENCY])}
    return None if kind == "none" else {"rope_type": "linear", "factor": factor}


def _longrope_of_gguf(raw: Mapping[str, Any], factors: Mapping[str, tuple[float, ...]], source: str) -> dict[str, Any]:
    if missing := {*GGUF_LONGROPE} - factors.keys():
        raise CorruptModel(f"{source}: tensor {min(missing)} is missing")
    return {
        "rope_type": "longrope",
        "original_max_position_embeddings": number(raw, "rope.scaling.original_context_length", source),
        "short_factor": factors[_SHORT],
        "long_factor": factors[_LONG],
        "attention_factor": number(raw, "rope.scaling.attn_factor", source, 1.0),
    }


def _yarn_of_gguf(raw: Mapping[str, Any], source: str) -> dict[str, Any]:
    """YaRN of gpt-oss. GGUF has no key for its bounds, which are not whole pairs; llama.cpp rounds them."""
    for key, plain in (("yarn_attn_factor", 1.0), ("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        if (value := raw.get(f"rope.scaling.{key}", plain)) != plain:
            raise UnsupportedModel(f"{source}: rope.scaling.{key} {value} is not supported; supported: {plain}")
    keys = {
        "factor": "factor", "original_max_position_embeddings": "original_context_length",
        "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow",
    }  # fmt: skip
    given = {own: raw[f"rope.scaling.{key}"] for own, key in keys.items() if f"rope.scaling.{key}" in raw}
    factor, where = number(given, "factor", f"{source}: rope.scaling"), f"{source}: rope.scaling"
    return {"rope_type": "yarn", "factor": factor} | _yarn({**given, "truncate": False}, factor, where)
