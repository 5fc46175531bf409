"""A model as written down: one whole sequence, in float32 on the processor, with no KV cache."""

from collections.abc import Callable

import torch

from legato_engine.kernels.reference.experts import route
from legato_engine.weights.checkpoint import Checkpoint


def logits(weights: Checkpoint, tokens: list[int]) -> torch.Tensor:
    """Logits of a Llama, a Qwen3 with or without experts, or a Gemma 3, after each token: float32 [tokens, vocab]."""
    config = weights.config
    gemma = config.architecture == "Gemma3ForCausalLM"
    hidden = _matrix(weights, "model.embed_tokens")[tokens] * config.embedding_multiplier
    for layer in range(config.layers):
        name = f"model.layers.{layer}"
        x = _attention(weights, layer, _norm(weights, f"{name}.input_layernorm", hidden))
        hidden = hidden + (_norm(weights, f"{name}.post_attention_layernorm", x) if gemma else x)
        x = _norm(weights, f"{name}.{'pre_feedforward' if gemma else 'post_attention'}_layernorm", hidden)
        x = _experts(weights, layer, x) if config.experts else _mlp(weights, f"{name}.mlp", x, gemma)
        hidden = hidden + (_norm(weights, f"{name}.post_feedforward_layernorm", x) if gemma else x)
    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
    return _norm(weights, "model.norm", hidden) @ _matrix(weights, head).T


def _mlp(weights: Checkpoint, name: str, x: torch.Tensor, gelu: bool) -> torch.Tensor:
    gate, up, down = (_matrix(weights, f"{name}.{part}_proj") for part in ("gate", "up", "down"))
    gated = torch.nn.functional.gelu(x @ gate.T, approximate="tanh") if gelu else torch.nn.functional.silu(x @ gate.T)
    return gated * (x @ up.T) @ down.T


def _experts(weights: Checkpoint, layer: int, x: torch.Tensor) -> torch.Tensor:
    config = weights.config
    assert config.experts is not None
    shape = config.experts.shape(config.architecture, config.hidden_size, layer)
    chosen = route(x @ _matrix(weights, shape.names.router).T, None, shape.routing)
    names = shape.names.gate.removesuffix(".gate_proj")
    return mixture(x, chosen, lambda number, x: _mlp(weights, names.format(number), x, gelu=False))


def mixture(
    x: torch.Tensor, chosen: list[list[tuple[int, float]]], expert: Callable[[int, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """The weighted sums of experts; `expert` computes all tokens of one together."""
    sums = torch.zeros_like(x)
    shares = [dict(pairs) for pairs in chosen]
    for number in sorted(set().union(*shares)):
        tokens = [token for token, share in enumerate(shares) if number in share]
        sums[tokens] += expert(number, x[tokens]) * torch.tensor([shares[token][number] for token in tokens])[:, None]
    return sums


def _attention(weights: Checkpoint, layer: int, x: torch.Tensor) -> torch.Tensor:
    config, name, window = weights.config, f"model.layers.{layer}.self_attn", weights.config.window(layer)
    local = window is not None and config.local_rope_theta is not None
    theta = config.local_rope_theta if local else config.rope_theta
    queries, keys, values = (
        (x @ _matrix(weights, f"{name}.{part}_proj").T).view(len(x), -1, config.head_dim) for part in "qkv"
    )
    if f"{name}.q_norm.weight" in weights.names():
        queries, keys = _norm(weights, f"{name}.q_norm", queries), _norm(weights, f"{name}.k_norm", keys)
    queries, keys = _rotate(theta, queries), _rotate(theta, keys)
    group = config.heads // config.kv_heads
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * (config.attention_scale or config.head_dim**-0.5)
    seen = torch.ones(len(x), len(x), dtype=torch.bool).tril().triu(1 - (window or len(x)))
    shares = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", shares, values).flatten(1) @ _matrix(weights, f"{name}.o_proj").T


def _rotate(theta: float, heads: torch.Tensor) -> torch.Tensor:
    """Pairs are a dimension of the first half and the one as far into the second, as Hugging Face has them."""
    half = heads.shape[-1] // 2
    angles = torch.outer(torch.arange(len(heads)), theta ** (-torch.arange(half) / half))[:, None]
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


def _norm(weights: Checkpoint, name: str, x: torch.Tensor) -> torch.Tensor:
    by = _matrix(weights, name) + weights.config.norm_offset
    return x * (x.square().mean(-1, keepdim=True) + weights.config.rms_norm_eps).rsqrt() * by


def _matrix(weights: Checkpoint, name: str) -> torch.Tensor:
    return weights.tensor(f"{name}.weight").float()
