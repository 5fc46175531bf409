"""The Llama family in float32 on any processor: the same blocks as `llama`, in few calls and without gathering KV.

`codes` keeps beside float32 weights the file's own 4-bit and 8-bit codes, for steps of few rows: less memory is read,
and the numbers are still those of float32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legato_engine.kernels.attention.cpu_float32 import attention
from legato_engine.kernels.rms_norm.cpu_float32 import add_rms_norm
from legato_engine.kernels.rope.cpu_float32 import rotate_and_write
from legato_engine.kernels.silu_mul.cpu_float32 import silu_mul
from legato_engine.layers import linear_float32, rotary
from legato_engine.layers.linear_float32 import LinearFloat32
from legato_engine.models.checkpoint import Checkpoint
from legato_engine.models.config import ModelConfig
from legato_engine.step_inputs import Paged, StepInputs

Array = np.ndarray[Any, Any]


def fits(config: ModelConfig, block_size: int) -> bool:
    """Whether all sizes are multiples of those that the kernels count in."""
    heads = config.head_dim * (config.heads + 2 * config.kv_heads)
    sizes = (config.hidden_size, config.intermediate_size, config.head_dim, heads, config.vocab_size)
    return block_size % 4 == 0 and all(size % 32 == 0 for size in sizes)


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one layer."""

    attention_norm: Array
    qkv: LinearFloat32
    output: LinearFloat32
    mlp_norm: Array
    gate_up: LinearFloat32
    down: LinearFloat32


class Buffers:
    """Memory of a step's intermediate results."""

    def __init__(self, config: ModelConfig, rows: int) -> None:
        self.rows = rows
        wide = config.heads * config.head_dim
        self.residual, self.delta, self.normed = (self._floats(config.hidden_size) for _ in range(3))
        self.qkv = self._floats(wide + 2 * config.kv_heads * config.head_dim)
        self.attended, self.gate_up = self._floats(wide), self._floats(2 * config.intermediate_size)
        self.gated = self._floats(config.intermediate_size)

    def _floats(self, width: int) -> Array:
        return np.zeros((self.rows, width), np.float32)


class LlamaFloat32:
    """Computes logits of a step. `nbytes` is the memory of its weights."""

    def __init__(self, checkpoint: Checkpoint, codes: bool, max_length: int, progress: Callable[[float], None]) -> None:
        config = checkpoint.config
        self.config = config
        self._embedding = linear_float32.table(checkpoint, "model.embed_tokens", codes)
        self._head = self._embedding
        if not config.tie_word_embeddings:
            self._head = linear_float32.table(checkpoint, "lm_head", codes)
        self._blocks = [_block(checkpoint, index, codes, progress) for index in range(config.layers)]
        self._norm = checkpoint.vector("model.norm.weight").numpy()
        self._eps = np.float32(config.rms_norm_eps)
        cos, sin = rotary.tables(config, max_length)
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._buffers = Buffers(config, 32)

    @property
    def nbytes(self) -> int:
        linears = [part for b in self._blocks for part in (b.qkv, b.output, b.gate_up, b.down)]
        return sum(part.nbytes for part in {self._embedding, self._head, *linears})

    def logits(self, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """Float32 logits [sampled, vocab]; writes the KV of all tokens to `arena` (KVLayout's shape, float32)."""
        rows = inputs.tokens.shape[0]
        if rows > self._buffers.rows:
            self._buffers = Buffers(self.config, rows)
        b, held = self._buffers, arena.numpy()
        b.residual[:rows] = self._embedding.rows(inputs.tokens)
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

    def _attend(self, index: int, inputs: StepInputs, arena: Array, b: Buffers) -> None:
        """From b.qkv to b.attended: rotation, KV write and attention."""
        rows, heads = inputs.tokens.shape[0], self.config.heads
        qkv = b.qkv[:rows].reshape(rows, -1, self.config.head_dim)
        out = b.attended[:rows].reshape(rows, heads, self.config.head_dim)
        rotate_and_write(
            qkv, heads, inputs.positions.numpy(), self._cos, self._sin, arena, index,
            inputs.blocks.numpy(), inputs.places.numpy(),
        )  # fmt: skip
        paged = inputs.attended
        assert isinstance(paged, Paged)
        attention(qkv, paged.work, paged.tables, self.config.sliding_window or 0, arena, index, out)

    def _sampled(self, sampled: Array, b: Buffers) -> torch.Tensor:
        delta, residual = b.delta[sampled], b.residual[sampled]
        logits = np.empty((len(sampled), self.config.vocab_size), np.float32)
        if len(sampled):
            x = np.empty_like(delta)
            add_rms_norm(delta, residual, len(sampled), self._norm, self._eps, x)
            self._head(x, len(sampled), logits)
        return torch.from_numpy(logits)


def _block(checkpoint: Checkpoint, index: int, codes: bool, progress: Callable[[float], None]) -> Block:
    prefix = f"model.layers.{index}"
    attend, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"

    def load(*names: str) -> LinearFloat32:
        return linear_float32.load(checkpoint, names, codes)

    block = Block(
        attention_norm=checkpoint.vector(f"{prefix}.input_layernorm.weight").numpy(),
        qkv=load(f"{attend}.q_proj", f"{attend}.k_proj", f"{attend}.v_proj"),
        output=load(f"{attend}.o_proj"),
        mlp_norm=checkpoint.vector(f"{prefix}.post_attention_layernorm.weight").numpy(),
        gate_up=load(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=load(f"{mlp}.down_proj"),
    )
    progress((index + 1) / checkpoint.config.layers)
    return block
