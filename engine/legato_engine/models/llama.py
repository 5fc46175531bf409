"""The Llama family: SmolLM2, Llama 2 and 3, Mistral. Pre-norm blocks of grouped attention and a gated MLP."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from legato_engine.kernels.attention.cpu import attention
from legato_engine.kernels.rms_norm.cpu import add_rms_norm, rms_norm
from legato_engine.kernels.rope.cpu import rotate, write_kv
from legato_engine.kernels.silu_mul.cpu import silu_mul
from legato_engine.layers import linear, rotary
from legato_engine.layers.linear import Linear
from legato_engine.models.checkpoint import Checkpoint
from legato_engine.step_inputs import StepInputs


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one layer."""

    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """Computes hidden states of a step's tokens and logits of some of them, in one dtype throughout."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        max_length: int,
        progress: Callable[[float], None],
    ) -> None:
        config = checkpoint.config
        self.config = config
        self._dtype = dtype
        self._embedding = checkpoint.tensor("model.embed_tokens.weight").to(device, dtype)
        self._blocks = [_block(checkpoint, i, dtype, device, progress) for i in range(config.layers)]
        self._norm = checkpoint.vector("model.norm.weight").to(device, dtype)
        self._head = Linear(self._embedding, None)
        if not config.tie_word_embeddings:
            self._head = linear.load(checkpoint, ["lm_head"], dtype, device)
        cos, sin = rotary.tables(config, max_length)
        self._cos, self._sin = cos.to(device, dtype)[:, None], sin.to(device, dtype)[:, None]

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        linears = [part for b in self._blocks for part in (b.qkv, b.output, b.gate_up, b.down)]
        tables = {id(table): table.nbytes for table in (self._embedding, self._head.weight)}
        return sum(tables.values()) + sum(part.weight.nbytes for part in linears)

    def logits(self, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """Float32 logits [sampled, vocab]; writes the KV of all tokens to `arena` (KVLayout's shape)."""
        cos, sin = self._cos[inputs.positions], self._sin[inputs.positions]
        residual = self._embedding[inputs.tokens]
        x = torch.zeros_like(residual)
        for index, block in enumerate(self._blocks):
            x = add_rms_norm(x, residual, block.attention_norm, self.config.rms_norm_eps)
            x = self._attend(block, x, cos, sin, inputs, arena[:, index])
            x = add_rms_norm(x, residual, block.mlp_norm, self.config.rms_norm_eps)
            x = block.down(silu_mul(block.gate_up(x)))
        last = (x + residual)[inputs.sampled]
        return self._head(rms_norm(last, self._norm, self.config.rms_norm_eps)).float()

    def _attend(
        self,
        block: Block,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        inputs: StepInputs,
        layer: torch.Tensor,
    ) -> torch.Tensor:
        groups = inputs.attended
        assert isinstance(groups, tuple)
        heads, kv_heads = self.config.heads, self.config.kv_heads
        qkv = block.qkv(x).view(x.shape[0], heads + 2 * kv_heads, self.config.head_dim)
        turned = rotate(qkv[:, : heads + kv_heads], cos, sin)
        write_kv(turned[:, heads:], qkv[:, heads + kv_heads :], layer, inputs.blocks, inputs.places)
        return block.output(attention(turned[:, :heads], layer, groups).reshape(x.shape[0], -1))


def _block(
    checkpoint: Checkpoint, index: int, dtype: torch.dtype, device: torch.device, progress: Callable[[float], None]
) -> Block:
    prefix = f"model.layers.{index}"
    attend, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

    def load(*names: str) -> Linear:
        return linear.load(checkpoint, names, dtype, device)

    block = Block(
        attention_norm=checkpoint.vector(f"{prefix}.input_layernorm.weight").to(device, dtype),
        qkv=load(f"{attend}.q_proj", f"{attend}.k_proj", f"{attend}.v_proj"),
        output=load(f"{attend}.o_proj"),
        mlp_norm=checkpoint.vector(f"{prefix}.post_attention_layernorm.weight").to(device, dtype),
        gate_up=load(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=load(f"{mlp}.down_proj"),
    )
    progress((index + 1) / checkpoint.config.layers)
    return block
