"""Mixtures of experts by architecture: keys of a `config.json`, and names of weights. No tensors, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from legato_engine.errors import CorruptModel, UnsupportedModel
from legato_engine.kernels.routing import ExpertRouting, Gating, Scoring
from legato_engine.layers.experts import ExpertNames, ExpertsShape, SharedExpert
from legato_engine.models.hyperparameters.fields import count, flag, number, size


class ExpertFamily(NamedTuple):
    """The mixture of experts of an architecture; `module` and the other names are parts of a layer's."""

    module: str = "mlp"
    router: str = "gate"
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    inner: str = "moe_intermediate_size"  # the key of an expert's size
    normalize: bool | None = None  # None: the key `norm_topk_prob` says so
    shared: str = ""  # the shared expert
    shared_weight: bool = True  # it has a weight, whose name ends with `_gate`
    scoring: Scoring = Scoring.SOFTMAX
    correction: str | None = None  # added to the scores of the choice
    gating: Gating = Gating.SILU
    biases: bool = False  # of the router and of the experts


FAMILIES: Mapping[str, ExpertFamily] = {
    "Glm4MoeForCausalLM": ExpertFamily(
        shared="shared_experts", shared_weight=False, scoring=Scoring.SIGMOID, correction="gate.e_score_correction_bias"
    ),
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
_GGUF_ROUTING: Mapping[str, tuple[float, ...]] = {
    "expert_gating_func": (0, 1), "expert_weights_scale": (0, 1), "expert_group_count": (0, 1),
}  # fmt: skip
_GGUF_GLM: Mapping[str, tuple[float, ...]] = {"expert_gating_func": (0, 2)}  # sigmoid
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # transformers reads and writes several
_MIXTRAL = frozenset({*_COUNTS[:2], "num_experts_per_tok"})
_QWEN3 = _MIXTRAL | {"norm_topk_prob", "moe_intermediate_size", "decoder_sparse_step", "mlp_only_layers"}
KEYS: Mapping[str, frozenset[str]] = {
    "Glm4MoeForCausalLM": frozenset(
        {
            *_COUNTS[1:],
            "num_experts_per_tok",
            "norm_topk_prob",
            "moe_intermediate_size",
            "n_shared_experts",
            "first_k_dense_replace",
            "routed_scaling_factor",
            "n_group",
            "topk_group",
        }
    ),
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
        gate, up, down = (f"{module}.experts.{{}}.{each}" for each in family.projections)
        correction = None if family.correction is None else f"{module}.{family.correction}"
        names = ExpertNames(f"{module}.{family.router}", gate, up, down, correction)
        shared = None
        if self.shared_inner is not None:
            name = f"{module}.{family.shared}"
            gate, up, down = (f"{name}.{each}" for each in family.projections)
            weight = f"{name}_gate" if family.shared_weight else None
            shared = SharedExpert(gate, up, down, self.shared_inner, weight)
        biases = family.biases
        return ExpertsShape(hidden, self.inner, self.routing, names, family.gating, biases, biases, shared)


def from_huggingface(raw: Mapping[str, Any], architecture: str, layers: int, source: str) -> ExpertsConfig | None:
    """The experts in a `config.json`; None for architectures without. Raises CorruptModel or UnsupportedModel."""
    family = FAMILIES.get(architecture)
    if family is None:
        return None
    normalize = flag(raw, "norm_topk_prob", source) if family.normalize is None else family.normalize
    routing = ExpertRouting(
        _count(raw, architecture, source),
        size(raw, "num_experts_per_tok", source),
        family.scoring,
        normalize,
        number(raw, "routed_scaling_factor", source, 1.0),
        size(raw, "n_group", source, 1),
        size(raw, "topk_group", source, 1),
    )
    inner = size(raw, family.inner, source)
    shared = None
    if family.shared:
        shared = inner * count(raw, "n_shared_experts", source)
        shared = shared or size(raw, "shared_expert_intermediate_size", source)
    return checked(ExpertsConfig(routing, inner, _dense_layers(raw, layers, source), shared), source)


def from_gguf(raw: Mapping[str, Any], architecture: str, source: str) -> ExpertsConfig | None:
    """The experts in GGUF metadata without its prefix, as llama.cpp interprets it; None without experts. Raises
    CorruptModel or UnsupportedModel."""
    family = FAMILIES.get(architecture)
    if family is None:
        if raw.get("expert_count"):
            raise UnsupportedModel(f"{source}: expert_count {raw['expert_count']} is not supported for {architecture}")
        return None
    routing, dense = _routing_of_gguf(raw, architecture, source), size(raw, "feed_forward_length", source)
    separate = family.inner == "moe_intermediate_size"  # otherwise llama.cpp reads no size of their own
    inner = size(raw, "expert_feed_forward_length", source, dense // routing.active) if separate else dense
    shared = None
    if family.shared:
        shared = inner * count(raw, "expert_shared_count", source)
        shared = shared or size(raw, "expert_shared_feed_forward_length", source, dense)
    return checked(
        ExpertsConfig(routing, inner, tuple(range(count(raw, "leading_dense_block_count", source))), shared), source
    )


def _routing_of_gguf(raw: Mapping[str, Any], architecture: str, source: str) -> ExpertRouting:
    """Only GLM's routing has numbers; others are constants of llama.cpp. Raises CorruptModel or UnsupportedModel."""
    normalize, scoring = architecture in _NORMALIZED_IN_GGUF, FAMILIES[architecture].scoring
    glm = scoring is Scoring.SIGMOID
    for key, allowed in (_GGUF_GLM if glm else {**_GGUF_ROUTING, "expert_weights_norm": (normalize,)}).items():
        if (value := raw.get(key, allowed[0])) not in allowed:
            supported = " or ".join(map(str, allowed))
            raise UnsupportedModel(f"{source}: {key} is {value!r}; only {supported} is supported")
    routing = ExpertRouting(
        size(raw, "expert_count", source), size(raw, "expert_used_count", source), scoring, normalize
    )
    if not glm:
        return routing
    return replace(
        routing,
        normalize=flag(raw, "expert_weights_norm", source),
        scale=number(raw, "expert_weights_scale", source) if raw.get("expert_weights_scale") else 1.0,
        groups=max(1, count(raw, "expert_group_count", source)),
        active_groups=max(1, count(raw, "expert_group_used_count", source)),
    )


def checked(config: ExpertsConfig, source: str) -> ExpertsConfig:
    """Returns `config`. Raises CorruptModel if a token has more experts, or more groups, than there are."""
    routing = config.routing
    if routing.active > routing.count:
        reason = f"{routing.active} experts for each token are more than the model's {routing.count}"
        raise CorruptModel(f"{source}: {reason}")
    if routing.count % routing.groups or (routing.groups > 1 and routing.count < 2 * routing.groups):
        reason = f"{routing.count} experts cannot form {routing.groups} equal groups of two or more"
        raise CorruptModel(f"{source}: {reason}")
    eligible = routing.count // routing.groups * routing.active_groups
    if routing.active_groups > routing.groups or routing.active > eligible:
        chosen = f"{routing.active} experts for each token, from {routing.active_groups} groups"
        raise CorruptModel(f"{source}: {chosen}, are more than {routing.groups} groups of the model have")
    return config


def _count(raw: Mapping[str, Any], architecture: str, source: str) -> int:
    keys = [key for key in _COUNTS if key in KEYS[architecture]]
    given = {key: size(raw, key, source) for key in keys if raw.get(key) is not None}
    if len({*given.values()}) > 1:
        raise CorruptModel(f"{source}: {' and '.join(given)} differ: {', '.join(map(str, sorted(given.values())))}")
    return next(iter(given.values())) if given else size(raw, keys[0], source)


def _dense_layers(raw: Mapping[str, Any], layers: int, source: str) -> tuple[int, ...]:
    """The layers of `mlp_only_layers`, those between multiples of `decoder_sparse_step`, and the first
    `first_k_dense_replace`."""
    first = count(raw, "first_k_dense_replace", source)
    listed, step = raw.get("mlp_only_layers") or [], size(raw, "decoder_sparse_step", source, 1)
    if not isinstance(listed, list) or not all(type(each) is int for each in listed):
        raise CorruptModel(f"{source}: mlp_only_layers is {listed!r}; a list of layers is needed")
    if outside := [each for each in listed if not 0 <= each < layers]:
        raise UnsupportedModel(f"{source}: mlp_only_layers names layer {outside[0]}; 0 … {layers - 1} are allowed")
    return tuple([layer for layer in range(layers) if layer < first or layer in listed or (layer + 1) % step])
