"""Llama: SmolLM2, Llama 2 and 3. Pre-norm blocks of grouped-query attention and a gated MLP.

The config makes it Mistral (a window), Mixtral (experts), Granite 3 (multipliers) or SmolLM3 (layers without a rotary
embedding). Families that differ in other details derive from it.
"""

from collections.abc import Callable
from typing import ClassVar

import torch

from legato_engine.layers.interface import AttentionShape, Experts, Hidden, Layers, Step
from legato_engine.layers.splits import ColumnParallel, RowParallel
from legato_engine.models.config import ModelConfig


class SelfAttention:
    """Attention with its projections."""

    def __init__(self, model: "Llama", layers: Layers, index: int) -> None:
        config, name = model.config, f"model.layers.{index}.self_attn"
        dim, hidden = config.head_dim, config.hidden_size
        wide, narrow = config.heads * dim, config.kv_heads * dim
        parts = {f"{name}.q_proj": wide, f"{name}.k_proj": narrow, f"{name}.v_proj": narrow}
        if model.fused:
            parts = {f"{name}.qkv_proj": wide + 2 * narrow}
        split = ColumnParallel((wide, narrow, narrow), unit=dim)
        self._qkv = layers.linear([*parts], hidden, [*parts.values()], model.qkv_bias(), split)
        shape = AttentionShape(
            config.heads,
            config.kv_heads,
            dim,
            window=config.window(index),
            query_norm=f"{name}.q_norm" if model.has_qk_norm() else None,
            key_norm=f"{name}.k_norm" if model.has_qk_norm() else None,
            whole_norms=model.whole_norms,
            rotation=config.rotation(index),
            sinks=f"{name}.sinks" if model.sinks else None,
        )
        self._attention = layers.attention(index, shape)
        self._output = layers.linear([f"{name}.o_proj"], wide, [hidden], model.output_bias(), RowParallel())

    def __call__(self, step: Step, x: Hidden) -> Hidden:
        return self._output(step, self._attention(step, self._qkv(step, x)))


class Mlp:
    """The gated MLP."""

    def __init__(self, model: "Llama", layers: Layers, index: int) -> None:
        config, name = model.config, f"model.layers.{index}.mlp"
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        parts = {f"{name}.gate_proj": inner, f"{name}.up_proj": inner}
        if model.fused:
            parts = {f"{name}.gate_up_proj": 2 * inner}
        self._gate_up = layers.linear([*parts], hidden, [*parts.values()], bias, ColumnParallel((inner, inner)))
        self._activation = layers.gelu_mul(inner) if model.gelu else layers.silu_mul(inner)
        self._down = layers.linear([f"{name}.down_proj"], inner, [hidden], bias, RowParallel())

    def __call__(self, step: Step, x: Hidden) -> Hidden:
        return self._down(step, self._activation(step, self._gate_up(step, x)))


class Block:
    """One layer of the model."""

    def __init__(self, model: "Llama", layers: Layers, index: int) -> None:
        name, hidden = f"model.layers.{index}", model.config.hidden_size
        self._attention_norm = layers.norm(f"{name}.input_layernorm", hidden)
        self._attention = SelfAttention(model, layers, index)
        self._mlp_norm = layers.norm(f"{name}.post_attention_layernorm", hidden)
        self._mlp = model.mlp(layers, index)

    def __call__(self, step: Step, x: Hidden | None, residual: Hidden) -> Hidden:
        """`x` is the previous block's output, not yet added to the residual stream; returns this block's output."""
        x = self._attention(step, self._attention_norm(step, x, residual))
        return self._mlp(step, self._mlp_norm(step, x, residual))


def _go_on() -> None:
    """Steps stop between two layers only for a worker that shares its cores."""


class Llama:
    """Consists of a backend's layers, which it requests with the names of their weights."""

    block: ClassVar[type[Block]] = Block
    fused: ClassVar[bool] = False  # one weight for queries, keys and values, and one for gates and ups
    qk_norm: ClassVar[bool] = False  # RMSNorms of queries and keys
    whole_norms: ClassVar[bool] = False  # one norm for all heads together instead of one for each head
    gelu: ClassVar[bool] = False  # GELU instead of SiLU
    sinks: ClassVar[bool] = False  # scores of each head without a value

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        self.config = config
        vocab, hidden = config.vocab_size, config.hidden_size
        self._embedding = layers.embedding("model.embed_tokens", vocab, hidden)
        self._blocks = [self.block(self, layers, index) for index in range(config.layers)]
        head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self._head = layers.head("model.norm", head, vocab, hidden)
        self.between_layers: Callable[[], None] = _go_on

    def logits(self, step: Step) -> torch.Tensor:
        """Float32 logits [sampled, vocab]; the KV of all tokens is in the arena afterwards."""
        x, residual = None, self._embedding(step)
        for block in self._blocks:
            self.between_layers()
            x = block(step, x, residual)
        return self._head(step, x, residual)

    def mlp(self, layers: Layers, index: int) -> Mlp | Experts:
        """The MLP of a layer, or its mixture of experts."""
        config, experts = self.config, self.config.experts
        if experts is None or index in experts.dense_layers:
            return Mlp(self, layers, index)
        return layers.experts(experts.shape(config.architecture, config.hidden_size, index))

    def has_qk_norm(self) -> bool:
        return self.qk_norm

    def qkv_bias(self) -> bool:
        return self.config.attention_bias

    def output_bias(self) -> bool:
        return self.config.attention_bias
