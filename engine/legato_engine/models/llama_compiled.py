"""The Llama family by compiled kernels on a processor: blocks as in `llama`, in few calls and without gathering KV.

The residual stream is float32; what linear layers and attention compute in is `arithmetic`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legato_engine.kernels.rms_norm.compiled import add_rms_norm
from legato_engine.kernels.rope.compiled import rotate_and_write
from legato_engine.kernels.silu_mul.compiled import silu_mul
from legato_engine.layers import rotary
from legato_engine.models.arithmetic import Arithmetic, Array, Projection
from legato_engine.models.checkpoint import Checkpoint
from legato_engine.models.config import ModelConfig
from legato_engine.step_inputs import Paged, StepInputs


@dataclass(frozen=True, slots=True)
class CompiledBlock:
    """Weights of one layer."""

    attention_norm: Array
    qkv: Projection
    output: Projection
    mlp_norm: Array
    gate_up: Projection
    down: Projection


class Buffers:
    """Memory of a step's intermediate results, for a number of rows rounded up to 32."""

    def __init__(self, config: ModelConfig, rows: int, inputs: type[np.generic]) -> None:
        self.rows = _room(rows)
        wide = config.heads * config.head_dim
        self.residual, self.delta = self._of(config.hidden_size), self._of(config.hidden_size)
        self.qkv = self._of(wide + 2 * config.kv_heads * config.head_dim)
        self.gate_up = self._of(2 * config.intermediate_size)
        self.normed = self._of(config.hidden_size, inputs)
        self.attended = self._of(wide, inputs)
        self.gated = self._of(config.intermediate_size, inputs)

    def _of(self, width: int, kind: Any = np.float32) -> Array:
        return np.zeros((self.rows, width), kind)


class LlamaCompiled:
    """Computes logits of a step. `nbytes` is the memory of its weights."""

    def __init__(
        self, checkpoint: Checkpoint, arithmetic: Arithmetic, max_length: int, progress: Callable[[float], None]
    ) -> None:
        config = checkpoint.config
        self.config = config
        self._arithmetic = arithmetic
        self._embedding = arithmetic.table(checkpoint, "model.embed_tokens")
        self._head = self._embedding if config.tie_word_embeddings else arithmetic.table(checkpoint, "lm_head")
        self._blocks = [_block(checkpoint, index, arithmetic, progress) for index in range(config.layers)]
        self._norm = checkpoint.vector("model.norm.weight").numpy()
        self._eps = np.float32(config.rms_norm_eps)
        cos, sin = rotary.tables(config, max_length)
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._buffers = Buffers(config, 32, arithmetic.inputs)

    @property
    def nbytes(self) -> int:
        linears = [part for b in self._blocks for part in (b.qkv, b.output, b.gate_up, b.down)]
        return sum(part.nbytes for part in {self._embedding, self._head, *linears})

    def logits(self, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """Float32 logits [sampled, vocab]; writes the KV of all tokens to `arena` (KVLayout's shape)."""
        rows = inputs.tokens.shape[0]
        if rows > self._buffers.rows:
            self._buffers = Buffers(self.config, rows, self._arithmetic.inputs)
        b, held = self._buffers, self._arithmetic.held(arena)
        b.residual[:rows] = self._embedding.rows(inputs.tokens.numpy())
        b.delta[:rows] = 0
        for index, block in enumerate(self._blocks):
            add_rms_norm(b.delta, b.residual, rows, block.attention_norm, self._eps, b.normed)
            block.qkv(b.normed, rows, b.qkv)
            self._attend(index, inputs, held, b)
            block.output(b.attended, rows, b.delta)
            add_rms_norm(b.delta, b.residual, rows, block.mlp_norm, self._eps, b.normed)
            block.gate_up(b.normed, rows, b.gate_up)
            silu_mul(b.gate_up, rows, b.gated)
            block.down(b.gated, rows, b.delta)
        return self._sampled(inputs.sampled.numpy(), b)

    def _attend(self, index: int, inputs: StepInputs, held: Array, b: Buffers) -> None:
        """From b.qkv to b.attended: rotation, KV write and attention."""
        rows, heads, dim = inputs.tokens.shape[0], self.config.heads, self.config.head_dim
        qkv = b.qkv[:rows].reshape(rows, -1, dim)
        rotate_and_write(
            qkv, heads, inputs.positions.numpy(), self._cos, self._sin, held, index,
            inputs.blocks.numpy(), inputs.places.numpy(),
        )  # fmt: skip
        paged = inputs.attended
        assert isinstance(paged, Paged)
        out = b.attended[:rows].reshape(rows, heads, dim)
        self._arithmetic.attend(qkv, paged, self.config.sliding_window or 0, held, index, out)

    def _sampled(self, sampled: Array, b: Buffers) -> torch.Tensor:
        count = len(sampled)
        room = _room(count)
        delta, residual = b.delta[sampled], b.residual[sampled]
        logits = np.empty((room, self.config.vocab_size), np.float32)
        if count:
            x = np.zeros((room, self.config.hidden_size), self._arithmetic.inputs)
            add_rms_norm(delta, residual, count, self._norm, self._eps, x)
            self._head(x, count, logits)
        return torch.from_numpy(logits[:count])


def _room(rows: int) -> int:
    """Tiles compute 16 or 32 rows at a time."""
    return -(-rows // 32) * 32


def _block(
    checkpoint: Checkpoint, index: int, arithmetic: Arithmetic, progress: Callable[[float], None]
) -> CompiledBlock:
    prefix = f"model.layers.{index}"
    attend, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    block = CompiledBlock(
        attention_norm=checkpoint.vector(f"{prefix}.input_layernorm.weight").numpy(),
        qkv=arithmetic.linear(checkpoint, [f"{attend}.q_proj", f"{attend}.k_proj", f"{attend}.v_proj"]),
        output=arithmetic.linear(checkpoint, [f"{attend}.o_proj"]),
        mlp_norm=checkpoint.vector(f"{prefix}.post_attention_layernorm.weight").numpy(),
        gate_up=arithmetic.linear(checkpoint, [f"{mlp}.gate_proj", f"{mlp}.up_proj"]),
        down=arithmetic.linear(checkpoint, [f"{mlp}.down_proj"]),
    )
    progress((index + 1) / checkpoint.config.layers)
    return block
