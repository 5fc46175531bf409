"""A model as written down: one whole sequence, in float32 on the processor, with no KV cache."""

import torch

from legato_engine.models.config import ModelConfig
from legato_engine.weights.checkpoint import Checkpoint


def logits(weights: Checkpoint, tokens: list[int]) -> torch.Tensor:
    """Logits of a Llama or a Qwen3, after each token: float32 [tokens, vocab]."""
    config = weights.config
    hidden = _matrix(weights, "model.embed_tokens")[tokens]
    for layer in range(config.layers):
        name = f"model.layers.{layer}"
        hidden = hidden + _attention(weights, f"{name}.self_attn", _norm(weights, f"{name}.input_layernorm", hidden))
        x = _norm(weights, f"{name}.post_attention_layernorm", hidden)
        gate, up, down = (_matrix(weights, f"{name}.mlp.{part}_proj") for part in ("gate", "up", "down"))
        hidden = hidden + torch.nn.functional.silu(x @ gate.T) * (x @ up.T) @ down.T
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    return _norm(weights, "model.norm", hidden) @ _matrix(weights, head).T


def _attention(weights: Checkpoint, name: str, x: torch.Tensor) -> torch.Tensor:
    config = weights.config
    queries, keys, values = (
        (x @ _matrix(weights, f"{name}.{part}_proj").T).view(len(x), -1, config.head_dim) for part in "qkv"
    )
    if f"{name}.q_norm.weight" in weights.names():
        queries, keys = _norm(weights, f"{name}.q_norm", queries), _norm(weights, f"{name}.k_norm", keys)
    queries, keys = _rotate(config, queries), _rotate(config, keys)
    group = config.heads // config.kv_heads
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * config.head_dim**-0.5
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    shares = scores.masked_fill(later, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", shares, values).flatten(1) @ _matrix(weights, f"{name}.o_proj").T


def _rotate(config: ModelConfig, heads: torch.Tensor) -> torch.Tensor:
    """Pairs are a dimension of the first half and the one as far into the second, as Hugging Face has them."""
    half = config.head_dim // 2
    angles = torch.outer(torch.arange(len(heads)), config.rope_theta ** (-torch.arange(half) / half))[:, None]
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


def _norm(weights: Checkpoint, name: str, x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().mean(-1, keepdim=True) + weights.config.rms_norm_eps).rsqrt() * _matrix(weights, name)


def _matrix(weights: Checkpoint, name: str) -> torch.Tensor:
    return weights.tensor(f"{name}.weight").float()
