"""The Llama family on a processor with AMX: the same blocks as `llama`, in kernels that read bfloat16 and 4 bit.

The residual stream, sums and softmax are float32; weights, KV and the inputs of linear layers are bfloat16, and
weights are the file's 4-bit or 8-bit codes where few rows are computed and it holds such.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legato_engine.kernels.attention.cpu_bf16 import attention
from legato_engine.kernels.linear.cpu import SHAPES, activations
from legato_engine.kernels.rms_norm.cpu_bf16 import add_rms_norm
from legato_engine.kernels.rope.cpu_bf16 import rotate_and_write
from legato_engine.kernels.silu_mul.cpu_bf16 import silu_mul
from legato_engine.layers import linear_bf16, rotary
from legato_engine.layers.linear_bf16 import LinearBf16
from legato_engine.models.checkpoint import Checkpoint
from legato_engine.models.config import ModelConfig
from legato_engine.step_inputs import Paged, StepInputs

Array = np.ndarray[Any, Any]


def fits(config: ModelConfig, block_size: int) -> bool:
    """Whether all sizes are multiples of those of tiles."""
    heads = config.head_dim * (config.heads + 2 * config.kv_heads)
    inner = (config.hidden_size, config.intermediate_size, config.head_dim * config.heads)
    sizes = (*inner, heads, config.head_dim, config.vocab_size)
    return block_size % 16 == 0 and all(size % 32 == 0 for size in sizes)


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one layer."""

    attention_norm: Array
    qkv: LinearBf16
    output: LinearBf16
    mlp_norm: Array
    gate_up: LinearBf16
    down: LinearBf16


class Buffers:
    """Memory of a step's intermediate results, for a number of rows rounded up to 32."""

    def __init__(self, config: ModelConfig, rows: int) -> None:
        self.rows = -(-rows // 32) * 32
        wide = config.heads * config.head_dim
        self.residual, self.delta = self._floats(config.hidden_size), self._floats(config.hidden_size)
        self.qkv = self._floats(wide + 2 * config.kv_heads * config.head_dim)
        self.attended, self.gate_up = self._floats(wide), self._floats(2 * config.intermediate_size)
        self.normed = self._activations(config.hidden_size)
        self.asked = self._activations(wide)
        self.gated = self._activations(config.intermediate_size)

    def _floats(self, width: int) -> Array:
        return np.zeros((self.rows, width), np.float32)

    def _activations(self, width: int) -> Array:
        return np.zeros((self.rows, width), np.uint16)


class LlamaBf16:
    """Computes logits of a step. `nbytes` is the memory of its weights."""

    def __init__(self, checkpoint: Checkpoint, max_length: int, progress: Callable[[float], None]) -> None:
        config = checkpoint.config
        self.config = config
        embedding = checkpoint.tensor("model.embed_tokens.weight")
        self._embedding = LinearBf16(embedding, checkpoint.packed8("model.embed_tokens.weight"), None)
        self._head = self._embedding if config.tie_word_embeddings else linear_bf16.load(checkpoint, ["lm_head"])
        self._blocks = [_block(checkpoint, index, progress) for index in range(config.layers)]
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
        """Float32 logits [sampled, vocab]; writes the KV of all tokens to `arena` (KVLayout's shape, bfloat16)."""
        rows = inputs.tokens.shape[0]
        if rows > self._buffers.rows:
            self._buffers = Buffers(self.config, rows)
        b = self._buffers
        self._embed(inputs.tokens.numpy(), b)
        bits = arena.view(torch.int16).numpy().view(np.uint16)
        for index, block in enumerate(self._blocks):
            add_rms_norm(b.delta, b.residual, rows, block.attention_norm, self._eps, b.normed)
            block.qkv(b.normed, rows, b.qkv)
            self._attend(index, inputs, bits, b)
            block.output(b.asked, rows, b.delta)
            add_rms_norm(b.delta, b.residual, rows, block.mlp_norm, self._eps, b.normed)
            block.gate_up(b.normed, rows, b.gate_up)
            silu_mul(b.gate_up, rows, b.gated)
            block.down(b.gated, rows, b.delta)
        return self._sampled(inputs.sampled.numpy(), b)

    def _embed(self, tokens: Array, b: Buffers) -> None:
        tiles = self._embedding.tiles
        found = tiles[tokens // 16, :, :, tokens % 16].reshape(len(tokens), -1)
        b.residual[: len(tokens)] = torch.from_numpy(found.view(np.int16)).view(torch.bfloat16).float().numpy()
        b.delta[: len(tokens)] = 0

    def _attend(self, index: int, inputs: StepInputs, bits: Array, b: Buffers) -> None:
        """From b.qkv to b.asked: rotation, KV write, and attention by row length."""
        rows, heads = inputs.tokens.shape[0], self.config.heads
        qkv = b.qkv[:rows].reshape(rows, -1, self.config.head_dim)
        out = b.attended[:rows].reshape(rows, heads, self.config.head_dim)
        rotate_and_write(
            qkv, heads, inputs.positions.numpy(), self._cos, self._sin, bits, index,
            inputs.blocks.numpy(), inputs.places.numpy(),
        )  # fmt: skip
        paged = inputs.attended
        assert isinstance(paged, Paged)
        attention(qkv, paged.work, paged.tables, self.config.sliding_window or 0, SHAPES, bits, index, out)
        activations(b.attended, rows, b.asked)

    def _sampled(self, sampled: Array, b: Buffers) -> torch.Tensor:
        count = len(sampled)
        room = -(-count // 32) * 32
        delta, residual = np.zeros((2, room, self.config.hidden_size), np.float32)
        delta[:count], residual[:count] = b.delta[sampled], b.residual[sampled]
        x = np.zeros(delta.shape, np.uint16)
        logits = np.empty((room, self.config.vocab_size), np.float32)
        if count:
            add_rms_norm(delta, residual, count, self._norm, self._eps, x)
            self._head(x, count, logits)
        return torch.from_numpy(logits[:count])


def _block(checkpoint: Checkpoint, index: int, progress: Callable[[float], None]) -> Block:
    prefix = f"model.layers.{index}"
    attend, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    block = Block(
        attention_norm=checkpoint.vector(f"{prefix}.input_layernorm.weight").numpy(),
        qkv=linear_bf16.load(checkpoint, [f"{attend}.q_proj", f"{attend}.k_proj", f"{attend}.v_proj"]),
        output=linear_bf16.load(checkpoint, [f"{attend}.o_proj"]),
        mlp_norm=checkpoint.vector(f"{prefix}.post_attention_layernorm.weight").numpy(),
        gate_up=linear_bf16.load(checkpoint, [f"{mlp}.gate_proj", f"{mlp}.up_proj"]),
        down=linear_bf16.load(checkpoint, [f"{mlp}.down_proj"]),
    )
    progress((index + 1) / checkpoint.config.layers)
    return block
