"""Gemma 3, text: norms before and after attention and MLP, and GELU. Most layers have a window and another rotary base.
Embeddings are multiplied by a constant, and weights of norms are offsets from 1.
"""

from typing import ClassVar

from legato_engine.layers.interface import Hidden, Layers, Step
from legato_engine.models.llama import Block, Llama, Mlp, SelfAttention


class Gemma3Block(Block):
    def __init__(self, model: Llama, layers: Layers, index: int) -> None:
        name, hidden = f"model.layers.{index}", model.config.hidden_size
        self._attention_norm = layers.norm(f"{name}.input_layernorm", hidden)
        self._attention = SelfAttention(model, layers, index)
        self._attention_out = layers.output_norm(f"{name}.post_attention_layernorm", hidden)
        self._mlp_norm = layers.norm(f"{name}.pre_feedforward_layernorm", hidden)
        self._mlp = Mlp(model, layers, index)
        self._mlp_out = layers.output_norm(f"{name}.post_feedforward_layernorm", hidden)

    def __call__(self, step: Step, x: Hidden | None, residual: Hidden) -> Hidden:
        x = self._attention_out(step, self._attention(step, self._attention_norm(step, x, residual)))
        return self._mlp_out(step, self._mlp(step, self._mlp_norm(step, x, residual)))


class Gemma3(Llama):
    block: ClassVar[type[Block]] = Gemma3Block
    qk_norm: ClassVar[bool] = True
    gelu: ClassVar[bool] = True
