"""Llama: SmolLM2, Llama 2 and 3. Pre-norm blocks of grouped-query attention and a gated MLP.

Families that differ in details derive from it.
"""

from typing import ClassVar

import torch

from legato_engine.layers.interface import AttentionShape, Hidden, Layers, Step
from legato_engine.models.config import ModelConfig


class Llama:
    """Consists of a backend's layers, which it requests with the names of their weights."""

    qk_norm: ClassVar[bool] = False  # RMSNorms of each head's query and key

    def __init__(self, config: ModelConfig, layers: Layers) -> None:
        self.config = config
        vocab, hidden = config.vocab_size, config.hidden_size
        self._embedding = layers.embedding("model.embed_tokens", vocab, hidden)
        self._blocks = [Block(self, layers, index) for index in range(config.layers)]
        head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self._head = layers.head("model.norm", head, vocab, hidden)

    def logits(self, step: Step) -> torch.Tensor:
        """Float32 logits [sampled, vocab]; the KV of all tokens is in the arena afterwards."""
        x, residual = None, self._embedding(step)
        for block in self._blocks:
            x = block(step, x, residual)
        return self._head(step, x, residual)

    def qkv_bias(self) -> bool:
        return self.config.attention_bias

    def output_bias(self) -> bool:
        return self.config.attention_bias


class Block:
    """One layer of the model."""

    def __init__(self, model: Llama, layers: Layers, index: int) -> None:
        config, name = model.config, f"model.layers.{index}"
        attend, mlp = f"{name}.self_attn", f"{name}.mlp"
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        wide, narrow = config.heads * dim, config.kv_heads * dim
        self._attention_norm = layers.norm(f"{name}.input_layernorm", hidden)
        self._qkv = layers.linear(
            [f"{attend}.{part}_proj" for part in "qkv"], hidden, [wide, narrow, narrow], model.qkv_bias()
        )
        norms = (f"{attend}.q_norm", f"{attend}.k_norm") if model.qk_norm else (None, None)
        shape = AttentionShape(config.heads, config.kv_heads, dim, config.window(index), *norms)
        self._attention = layers.attention(index, shape)
        self._output = layers.linear([f"{attend}.o_proj"], wide, [hidden], model.output_bias())
        self._mlp_norm = layers.norm(f"{name}.post_attention_layernorm", hidden)
        self._gate_up = layers.linear([f"{mlp}.gate_proj", f"{mlp}.up_proj"], hidden, [inner, inner], config.mlp_bias)
        self._silu_mul = layers.silu_mul(inner)
        self._down = layers.linear([f"{mlp}.down_proj"], inner, [hidden], config.mlp_bias)

    def __call__(self, step: Step, x: Hidden | None, residual: Hidden) -> Hidden:
        """`x` is the previous block's output, not yet added to the residual stream; returns this block's output."""
        x = self._qkv(step, self._attention_norm(step, x, residual))
        x = self._output(step, self._attention(step, x))
        x = self._gate_up(step, self._mlp_norm(step, x, residual))
        return self._down(step, self._silu_mul(step, x))
