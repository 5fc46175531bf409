"""Configs of models, in either format: rotary settings, defaults, architectures."""

import copy
import dataclasses
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_files as files
import torch
import transformers
from gguf import GGMLQuantizationType as Type

from legato_engine.errors import CorruptModel, ModelError, UnsupportedFormat, UnsupportedModel
from legato_engine.layers import rotary
from legato_engine.layers.rotation import Rotation
from legato_engine.models import gguf_config, registry
from legato_engine.models.architectures import ARCHITECTURES
from legato_engine.models.config import from_huggingface
from legato_engine.models.hyperparameters.keys import KEYS
from legato_engine.weights.opening import open_weights

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("given", "theta", "scaling"),
    [
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, 7.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 5000.0, {"rope_type": "linear", "factor": 2.0}),
        ({"rope_scaling": LLAMA3}, 5000.0, LLAMA3),
    ],
)
def test_both_spellings_of_rotary_settings_are_read(
    tmp_path: Path, given: dict[str, object], theta: float, scaling: dict[str, object] | None
) -> None:
    files.write_folder(tmp_path, **given)
    config = open_weights(tmp_path).config
    assert (config.rope_theta, config.rope_scaling) == (theta, scaling)


def test_both_spellings_of_rotary_settings_by_kind_of_layer_are_read() -> None:
    base = {key: value for key, value in files.CONFIG.items() if key != "rope_theta"}
    base |= {"architectures": ["Gemma3ForCausalLM"], "layer_types": ["sliding_attention", "full_attention"]}
    linear = {"rope_type": "linear", "factor": 2.0}
    old = {"rope_theta": 5000.0, "rope_local_base_freq": 7.0, "rope_scaling": linear}
    new = {
        "full_attention": linear | {"rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 7.0},
    }
    config = from_huggingface(base | old, "here")
    assert config == from_huggingface(base | {"rope_parameters": new}, "here")
    assert [config.rotation(0), config.rotation(1)] == [
        Rotation(64, 7.0, None, 2**-0.5),
        Rotation(64, 5000.0, linear, 2**-0.5),
    ]


def test_rotary_factors_of_a_gguf_are_part_of_its_config_unless_they_are_packed(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, files.HEAD // 2, dtype=np.float32)
    tensors = files.tiny(Type.F16) | {"rope_freqs.weight": (factors, Type.F32)}
    config = open_weights(files.write_gguf(tmp_path / "tiny.gguf", tensors)).config
    assert config.rope_scaling == {"rope_type": "factors", "factors": tuple(factors.tolist())}
    packed = files.packed(Type.Q8_0, (32,), np.random.default_rng(1))
    tensors["rope_freqs.weight"] = packed, Type.Q8_0
    with pytest.raises(UnsupportedFormat, match="rope_freqs"):
        open_weights(files.write_gguf(tmp_path / "packed.gguf", tensors))


LLAMA_GGUF = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": 16,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": 8,
}
FACTORS = (1.0, 2.0, 4.0, 8.0)


def gguf_scaling(factors: tuple[float, ...] | None, **given: object) -> object:
    metadata = LLAMA_GGUF | {f"llama.rope.{key}": value for key, value in given.items()}
    tensors = {} if factors is None else {"rope_freqs.weight": factors}
    return gguf_config.read(metadata, frozenset(tensors), tensors, "here").rope_scaling


@pytest.mark.parametrize(
    ("factors", "given", "scaling"),
    [
        (None, {}, None),
        (None, {"scaling.type": "none", "scaling.factor": 4.0}, None),
        (None, {"scaling.type": "linear", "scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (None, {"scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (None, {"scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (FACTORS, {"scaling.type": "none"}, {"rope_type": "factors", "factors": FACTORS}),
        (
            FACTORS,
            {"scaling.type": "linear", "scaling.factor": 4.0},
            {"rope_type": "factors", "factors": (4.0, 8.0, 16.0, 32.0)},
        ),
    ],
)
def test_rotary_scalings_of_a_gguf_are_taken_as_llama_cpp_does(
    factors: tuple[float, ...] | None, given: dict[str, object], scaling: object
) -> None:
    assert gguf_scaling(factors, **given) == scaling


@pytest.mark.parametrize(
    ("factors", "given", "error", "message"),
    [
        *((factors, {"scaling.type": kind, "scaling.factor": 4.0}, UnsupportedModel, kind)
          for kind in ("yarn", "longrope") for factors in (None, FACTORS)),
        *((factors, {}, CorruptModel, "rope_freqs")
          for factors in (FACTORS[:3], (*FACTORS, 1.0), (1.0, 2.0, 0.0, 4.0), (1.0, 2.0, float("nan"), 4.0))),
    ],
)  # fmt: skip
def test_scalings_that_are_not_computed_and_factors_that_are_not_one_for_each_frequency_are_refused(
    factors: tuple[float, ...] | None, given: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gguf_scaling(factors, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"yarn_attn_factor": 1.5}, "rope.scaling.yarn_attn_factor 1.5 is not supported; supported: 1.0"),
        ({"original_context_length": 0}, "rope.scaling: original_max_position_embeddings is 0"),
        ({"factor": "x"}, "rope.scaling: factor is 'x'"),
    ],
)
def test_yarn_that_is_not_computed_is_refused_for_gpt_oss(given: dict[str, object], message: str) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 64} | given
    metadata = {"general.architecture": "gpt-oss", "gpt-oss.expert_count": 4, "gpt-oss.expert_used_count": 2}
    metadata |= {key.replace("llama.", "gpt-oss."): value for key, value in LLAMA_GGUF.items() if "general" not in key}
    metadata |= {f"gpt-oss.rope.scaling.{key}": value for key, value in scaling.items()}
    with pytest.raises(ModelError, match=re.escape(message)):
        gguf_config.read(metadata, frozenset(), {}, "here")


PHI3_GGUF = {key.replace("llama.", "phi3."): value for key, value in LLAMA_GGUF.items()} | {
    "general.architecture": "phi3", "phi3.rope.dimension_count": 6, "phi3.rope.scaling.attn_factor": 1.25,
    "phi3.rope.scaling.original_context_length": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ((), UnsupportedModel, r"attn_factor 1\.25 is not supported"),
        (("rope_factors_long.weight",), CorruptModel, r"rope_factors_short\.weight is missing"),
    ],
)
def test_a_gguf_of_phi_3_without_all_factors_is_refused(
    names: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gguf_config.read(PHI3_GGUF, frozenset(names), dict.fromkeys(names, FACTORS[:3]), "here")


GEMMA3_GGUF = {key.replace("llama.", "gemma3."): value for key, value in LLAMA_GGUF.items()} | {
    "general.architecture": "gemma3", "gemma3.attention.head_count": 1, "gemma3.attention.key_length": 4,
    "gemma3.attention.sliding_window": 16,
}  # fmt: skip


@pytest.mark.parametrize(("layers", "scale"), [(34, 0.5), (62, 0.25)])
def test_a_gguf_of_gemma_3_is_completed_as_llama_cpp_does(layers: int, scale: float) -> None:
    """27B, known by its layers, scales by the hidden size of a head. Softcapping, of Gemma 2, is refused."""
    given = GEMMA3_GGUF | {"gemma3.block_count": layers}
    config = gguf_config.read(given, frozenset(), {}, "here")
    assert (config.attention_scale, config.local_rope_theta, config.embedding_multiplier) == (scale, 10000.0, 4.0)
    assert config.full_attention == tuple(range(5, layers, 6))
    with pytest.raises(UnsupportedModel, match="final_logit_softcapping"):
        gguf_config.read(given | {"gemma3.final_logit_softcapping": 30.0}, frozenset(), {}, "here")


def test_mistral_has_its_own_defaults(tmp_path: Path) -> None:
    raw = {key: value for key, value in files.CONFIG.items() if key != "num_key_value_heads"}
    config = from_huggingface(raw | {"architectures": ["MistralForCausalLM"], "num_attention_heads": 16}, "here")
    assert (config.sliding_window, config.kv_heads) == (4096, 8)
    config = from_huggingface(files.CONFIG | {"architectures": ["MistralForCausalLM"], "sliding_window": None}, "here")
    assert config.sliding_window is None


@pytest.mark.parametrize(
    ("given", "windows"),
    [
        ({"sliding_window": 64}, [None, None]),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, [None, 64]),
        ({"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}, [None, 4096]),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, [None, None]),
        ({"use_sliding_window": True}, [None, None]),  # transformers' default is 28 layers without
    ],
)
def test_layers_of_qwen_have_windows_where_the_config_says_so(
    given: dict[str, object], windows: list[int | None]
) -> None:
    config = from_huggingface(files.CONFIG | {"architectures": ["Qwen2ForCausalLM"]} | given, "here")
    assert [config.window(layer) for layer in range(2)] == windows


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LEFT_OVER = [
    ("llama", {"sliding_window": 16}),
    ("llama", {"sliding_window": 16, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}),
    ("mistral", {"sliding_window": 16, "use_sliding_window": False}),
    ("mistral", {"sliding_window": 16, "max_window_layers": 1}),
    ("mistral", {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    ("mistral", {"attention_bias": True, "mlp_bias": True}),
    ("qwen2", {"attention_bias": False, "mlp_bias": True}),
    ("qwen3", {"attention_bias": True, "mlp_bias": True}),
    ("qwen3", {"max_window_layers": 0, "layer_types": ["full_attention"] * 2}),
    ("llama", {"partial_rotary_factor": 0.5}),
    ("granite", {"partial_rotary_factor": 0.5, "sliding_window": 16, "no_rope_layers": [0, 1]}),
    ("olmo2", {"attention_bias": True, "mlp_bias": True, "sliding_window": 16, "use_sliding_window": True}),
    ("smollm3", {"sliding_window": 16, "rope_local_base_freq": 7.0, "max_window_layers": 1}),
    ("smollm3", {"sliding_window": 16, "use_sliding_window": True, "no_rope_layers": [1, 0, 1]}),
    ("mixtral", {"sliding_window": 16, "attention_bias": True, "mlp_only_layers": [0], "decoder_sparse_step": 2}),
    ("qwen3_moe", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1, "mlp_only_layers": [0]}),
    ("qwen2_moe", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1, "mlp_only_layers": [0]}),
    ("olmoe", {"sliding_window": 16, "use_sliding_window": True, "mlp_only_layers": [0]}),
    ("seed_oss", {"attention_bias": False, "attention_out_bias": True, "sliding_window": 16}),
    ("glm4_moe", {"attention_bias": True, "mlp_bias": True, "sliding_window": 16, "mlp_only_layers": [1]}),
    ("gpt_oss", {"mlp_bias": True, "use_sliding_window": False, "mlp_only_layers": [0]}),
    (
        "gpt_oss",
        {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"], "attention_bias": False},
    ),
    ("gpt_oss", {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "sliding_window_pattern": 1}),
    ("llama", {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}),
    ("llama", {"rope_scaling": YARN, "original_max_position_embeddings": 32}),
    ("llama", {"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"}}),
]


@pytest.mark.parametrize(("kind", "given"), LEFT_OVER)
def test_keys_of_other_architectures_change_nothing(kind: str, given: dict[str, Any]) -> None:
    """Windows, biases, experts and rotary frequencies are those of the model that transformers makes."""
    theirs = transformers.AutoConfig.for_model(kind, pad_token_id=None, **copy.deepcopy(files.CONFIG | given))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(theirs).model
    rotation = type(model.rotary_emb)(config=theirs)
    first = model.layers[0]
    windows = {"llama": lambda _: None} | dict.fromkeys(("mistral", "mixtral"), lambda _: theirs.sliding_window)
    read_window = windows.get(kind, lambda layer: getattr(layer.self_attn, "sliding_window", None))

    config = from_huggingface(
        files.CONFIG | {"architectures": [type(model).__name__.replace("Model", "ForCausalLM")]} | given, "here"
    )

    assert [config.window(layer) for layer in range(config.layers)] == [read_window(layer) for layer in model.layers]
    ours = registry.model_class(config)
    bare = ours.__new__(ours)
    bare.config = config
    linear = (first.self_attn.q_proj, first.self_attn.o_proj, getattr(first.mlp, "up_proj", None))
    biases = [getattr(part, "bias", None) is not None for part in linear]
    assert [bare.qkv_bias(), bare.output_bias(), config.mlp_bias] == biases
    experts = [config.experts and layer not in config.experts.dense_layers for layer in range(config.layers)]
    assert [bool(each) for each in experts] == [hasattr(layer.mlp, "experts") for layer in model.layers]
    frequencies = rotary.frequencies(config.rotary_dim, config.rope_theta, config.rope_scaling)
    torch.testing.assert_close(frequencies, rotation.inv_freq)
    assert (config.rope_scaling or {}).get("attention_factor", 1.0) == pytest.approx(rotation.attention_scaling)


# Keys of training, of generation, and of what transformers computes in another way.
WITHOUT_EFFECT = {
    "attention_dropout", "embd_pdrop", "initializer_range", "pretraining_tp", "resid_pdrop", "residual_dropout",
    "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
    "output_router_logits", "router_aux_loss_coef", "router_jitter_noise",
}  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_key_that_transformers_reads_is_ignored(architecture: str) -> None:
    base = files.CONFIG | {"architectures": [architecture], "use_sliding_window": True, "sliding_window": 16}
    if architecture == "Phi3ForCausalLM":
        base["rope_parameters"] = {"type": "su"} | dict.fromkeys(("short_factor", "long_factor"), [2.0] * 32)
    theirs = type(transformers.AutoConfig.for_model(KEYS[architecture].model_type))
    own, common = ({each.name for each in dataclasses.fields(each)} for each in (theirs, transformers.PreTrainedConfig))
    config = from_huggingface(base, "here")
    for key in own - common - WITHOUT_EFFECT:
        with suppress(ModelError):
            assert {from_huggingface(base | {key: value}, "here") != config for value in ("another", False)} != {
                False
            }, key


def test_yarn_lengthens_what_a_model_can_take() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    config = from_huggingface(files.CONFIG | {"rope_scaling": scaling}, "here")
    assert config.max_length == 512
    assert config.rope_scaling is not None
    assert config.rope_scaling["original_max_position_embeddings"] == 128
    told = scaling | {"original_max_position_embeddings": 16}
    assert from_huggingface(files.CONFIG | {"rope_scaling": told}, "here").max_length == 128


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_has_a_class_and_opens(tmp_path: Path, architecture: str) -> None:
    files.write_folder(tmp_path, architecture)
    assert open_weights(tmp_path).config.architecture == architecture
