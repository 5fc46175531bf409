"""OLMo 2: Llama with norms after attention and MLP instead of before them, and with one norm over the queries of all
heads and one over the keys. The config makes it Olmo 3 (windows, rotary scaling only of layers without one)."""

from typing import ClassVar

from legato_engine.layers.interface import Hidden, Layers, Step
from legato_engine.models.llama import Block, Llama, Mlp, SelfAttention


class Olmo2Block(Block):
    def __init__(self, model: Llama, layers: Layers, index: int) -> None:
        name, hidden = f"model.layers.{index}", model.config.hidden_size
        self._sum = layers.sum(hidden)
        self._attention = SelfAttention(model, layers, index)
        self._attention_out = layers.output_norm(f"{name}.post_attention_layernorm", hidden)
        self._mlp = Mlp(model, layers, index)
        self._mlp_out = layers.output_norm(f"{name}.post_feedforward_layernorm", hidden)

    def __call__(self, step: Step, x: Hidden | None, residual: Hidden) -> Hidden:
        x = self._attention_out(step, self._attention(step, self._sum(step, x, residual)))
        return self._mlp_out(step, self._mlp(step, self._sum(step, x, residual)))


class Olmoe(Llama):
    """A mixture of experts with Llama's norms and Olmo2's norms of queries and keys."""

    qk_norm: ClassVar[bool] = True
    whole_norms: ClassVar[bool] = True


class Olmo2(Llama):
    block: ClassVar[type[Block]] = Olmo2Block
    qk_norm: ClassVar[bool] = True
    whole_norms: ClassVar[bool] = True


class Exaone4(Llama):
    """EXAONE 4: OLMo 2's blocks, with norms of single heads. Layers without a window may lack a rotary embedding."""

    block: ClassVar[type[Block]] = Olmo2Block
    qk_norm: ClassVar[bool] = True
