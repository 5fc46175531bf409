"""Mixtures of experts by architecture: keys of a `config.json`, and names of weights. No tensors, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from legato_engine.errors import CorruptModel, UnsupportedModel
from legato_engine.kernels.routing import ExpertRouting, Gating
from legato_engine.layers.experts import ExpertNames, ExpertsShape, SharedExpert
from legato_engine.models.fields import flag, size


class ExpertFamily(NamedTuple):
    """The mixture of experts of an architecture; `module` and the other names are parts of a layer's."""

    module: str = "mlp"
    router: str = "gate"
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    inner: str = "moe_intermediate_size"  # the key of an expert's size
    normalize: bool | None = None  # None: the key `norm_topk_prob` says so
    shared: str = ""  # the shared expert, and with `_gate` its weight
    gating: Gating = Gating.SILU
    biases: bool = False  # of the router and of the experts


FAMILIES: Mapping[str, ExpertFamily] = {
    "GptOssForCausalLM": ExpertFamily(
        router="router", inner="intermediate_size", normalize=True, gating=Gating.CLAMPED, biases=True
    ),
    "GraniteMoeForCausalLM": ExpertFamily(
        "block_sparse_moe", router="router.layer", inner="intermediate_size", normalize=True
    ),
    "MixtralForCausalLM": ExpertFamily(
        "block_sparse_moe", projections=("w1", "w3", "w2"), inner="intermediate_size", normalize=True
    ),
    "OlmoeForCausalLM": ExpertFamily(inner="intermediate_size"),
    "Qwen2MoeForCausalLM": ExpertFamily(shared="shared_expert"),
    "Qwen3MoeForCausalLM": ExpertFamily(),
}
# GGUF: llama.cpp's constants, and values of keys that change the routing.
_NORMALIZED_IN_GGUF = (
    "GptOssForCausalLM", "GraniteMoeForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM",
)  # fmt: skip
_GGUF_ROUTING: Mapping[str, tuple[float, ...]] = {"expert_gating_func": (0, 1), "expert_weights_scale": (0, 1)}
_COUNTS = ("num_experts", "num_local_experts")  # transformers reads and writes either
_MIXTRAL = frozenset({*_COUNTS, "num_experts_per_tok"})
_QWEN3 = _MIXTRAL | {"norm_topk_prob", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers"}
KEYS: Mapping[str, frozenset[str]] = {
    "GptOssForCausalLM": _MIXTRAL,
    "GraniteMoeForCausalLM": _MIXTRAL,
    "MixtralForCausalLM": _MIXTRAL,
    "OlmoeForCausalLM": _MIXTRAL | {"norm_topk_prob"},
    "Qwen2MoeForCausalLM": _QWEN3 | {"shared_expert_intermediate_size"},
    "Qwen3MoeForCausalLM": _QWEN3,
}


@dataclass(frozen=True)
class ExpertsConfig:
    """The mixture of experts of each layer, except `dense_layers`, which have an MLP."""

    routing: ExpertRouting
    inner: int
    dense_layers: tuple[int, ...] = ()
    shared_inner: int | None = None

    def shape(self, architecture: str, hidden: int, layer: int) -> ExpertsShape:
        """The layer's experts, with the names of their weights."""
        family = FAMILIES[architecture]
        module = f"model.layers.{layer}.{family.module}"
        names = ExpertNames(
            f"{module}.{family.router}", *(f"{module}.experts.{{}}.{each}" for each in family.projections)
        )
        shared = None
        if self.shared_inner is not None:
            name = f"{module}.{family.shared}"
            gate, up, down = (f"{name}.{each}" for each in family.projections)
            shared = SharedExpert(gate, up, down, self.shared_inner, f"{name}_gate")
        biases = family.biases
        return ExpertsShape(hidden, self.inner, self.routing, names, family.gating, biases, biases, shared)


def from_huggingface(raw: Mapping[str, Any], architecture: str, layers: int, source: str) -> ExpertsConfig | None:
    """The experts in a `config.json`; None for architectures without. Raises CorruptModel or UnsupportedModel."""
    family = FAMILIES.get(architecture)
    if family is None:
        return None
    normalize = flag(raw, "norm_topk_prob", source) if family.normalize is None else family.normalize
    routing = ExpertRouting(_count(raw, source), size(raw, "num_experts_per_tok", source), normalize=normalize)
    return checked(
        ExpertsConfig(
            routing,
            size(raw, family.inner, source),
            _dense_layers(raw, layers, source),
            size(raw, "shared_expert_intermediate_size", source) if family.shared else None,
        ),
        source,
    )


def from_gguf(raw: Mapping[str, Any], architecture: str, source: str) -> ExpertsConfig | None:
    """The experts in GGUF metadata without its prefix, as llama.cpp interprets it; None without experts. Raises
    CorruptModel or UnsupportedModel."""
    family = FAMILIES.get(architecture)
    if family is None:
        if raw.get("expert_count"):
            raise UnsupportedModel(f"{source}: expert_count {raw['expert_count']} is not supported for {architecture}")
        return None
    normalize = architecture in _NORMALIZED_IN_GGUF
    for key, allowed in {**_GGUF_ROUTING, "expert_weights_norm": (normalize,)}.items():
        if (value := raw.get(key, allowed[0])) not in allowed:
            supported = " or ".join(map(str, allowed))
            raise UnsupportedModel(f"{source}: {key} is {value!r}; only {supported} is supported")
    routing = ExpertRouting(
        size(raw, "expert_count", source), size(raw, "expert_used_count", source), normalize=normalize
    )
    dense = size(raw, "feed_forward_length", source)
    separate = family.inner == "moe_intermediate_size"  # otherwise llama.cpp reads no size of their own
    inner = size(raw, "expert_feed_forward_length", source, dense // routing.active) if separate else dense
    shared = size(raw, "expert_shared_feed_forward_length", source, dense) if family.shared else None
    return checked(ExpertsConfig(routing, inner, shared_inner=shared), source)


def checked(config: ExpertsConfig, source: str) -> ExpertsConfig:
    """Returns `config`. Raises CorruptModel if a token has more experts than there are."""
    if config.routing.active > config.routing.count:
        reason = f"{config.routing.active} experts for each token are more than the model's {config.routing.count}"
        raise CorruptModel(f"{source}: {reason}")
    return config


def _count(raw: Mapping[str, Any], source: str) -> int:
    given = {size(raw, key, source) for key in _COUNTS if raw.get(key) is not None}
    if len(given) > 1:
        raise CorruptModel(f"{source}: {' and '.join(_COUNTS)} differ: {', '.join(map(str, sorted(given)))}")
    return given.pop() if given else size(raw, _COUNTS[0], source)


def _dense_layers(raw: Mapping[str, Any], layers: int, source: str) -> tuple[int, ...]:
    """The layers of `mlp_only_layers`, and those between multiples of `decoder_sparse_step`."""
    listed, step = raw.get("mlp_only_layers") or [], size(raw, "decoder_sparse_step", source, 1)
    if not isinstance(listed, list) or not all(type(each) is int for each in listed):
        raise CorruptModel(f"{source}: mlp_only_layers is {listed!r}; a list of layers is needed")
    if outside := [each for each in listed if not 0 <= each < layers]:
        raise UnsupportedModel(f"{source}: mlp_only_layers names layer {outside[0]}; 0 … {layers - 1} are allowed")
    return tuple([layer for layer in range(layers) if layer in listed or (layer + 1) % step])
