"""Implements `layers.interface` with torch's operators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from legato_engine.backends import projections
from legato_engine.backends.interface import Forward, Progress
from legato_engine.backends.kv_groups import groups_of, of_layer
from legato_engine.backends.low_rank import LinearShape
from legato_engine.backends.torch import experts, low_rank
from legato_engine.backends.torch.experts import TorchExperts
from legato_engine.backends.torch.low_rank import TorchAdapter
from legato_engine.backends.torch.step import TorchStep
from legato_engine.kernels.torch.attention import attention
from legato_engine.kernels.torch.float8 import KVScales
from legato_engine.kernels.torch.rms_norm import add_rms_norm, rms_norm
from legato_engine.kernels.torch.rope import rotate, write_kv
from legato_engine.kernels.torch.silu_mul import gelu_mul, silu_mul
from legato_engine.kvcache.groups import LayerPlace
from legato_engine.layers.experts import ExpertsShape
from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.interface import AttentionShape
from legato_engine.layers.low_rank import Pair
from legato_engine.layers.rotary import RotaryTables
from legato_engine.layers.splits import Split
from legato_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class TorchEmbedding:
    weight: torch.Tensor  # [vocab, hidden]
    multiplier: float  # of embeddings

    def __call__(self, step: TorchStep) -> torch.Tensor:
        rows = self.weight[step.tokens]
        return rows.mul_(self.multiplier) if self.multiplier != 1 else rows


@dataclass(frozen=True, slots=True)
class TorchNorm:
    weight: torch.Tensor
    eps: float
    multiplier: float = 1.0  # of x

    def __call__(self, step: TorchStep, x: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
        if x is None:
            return rms_norm(residual, self.weight, self.eps)
        return add_rms_norm(x, residual, self.weight, self.eps, self.multiplier)


@dataclass(frozen=True, slots=True)
class TorchSum:
    def __call__(self, step: TorchStep, x: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
        return residual if x is None else residual.add_(x)


@dataclass(frozen=True, slots=True)
class TorchOutputNorm:
    weight: torch.Tensor
    eps: float

    def __call__(self, step: TorchStep, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class TorchLinear:
    name: str  # of its first projection
    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None

    def __call__(self, step: TorchStep, x: torch.Tensor) -> torch.Tensor:
        out = torch.nn.functional.linear(x, self.weight, self.bias)
        for adapter, tokens in step.adapted:
            if (update := adapter.updates.get(self.name)) is not None:
                update(x, tokens, out)
        return out


@dataclass(frozen=True, slots=True)
class TorchAttention:
    place: LayerPlace
    shape: AttentionShape
    query_norm: TorchNorm | None
    key_norm: TorchNorm | None
    angles: tuple[torch.Tensor, torch.Tensor]  # cos and sin, [positions, 1, pairs]
    scales: KVScales | None  # if the arena is in e4m3
    sinks: torch.Tensor | None  # [heads]

    def __call__(self, step: TorchStep, qkv: torch.Tensor) -> torch.Tensor:
        shape, tokens, group = self.shape, qkv.shape[0], self.place.group
        layer = of_layer(step.arena, self.place.place)
        rotated_heads = shape.heads + shape.kv_heads
        parts = qkv.view(tokens, rotated_heads + shape.kv_heads, shape.head_dim)
        plain = parts[:, :rotated_heads]
        if self.query_norm is not None and self.key_norm is not None:
            normed = plain.flatten(1) if shape.whole_norms else plain
            queries, keys = normed.tensor_split((normed.shape[1] * shape.heads // rotated_heads,), 1)
            normed = torch.cat((self.query_norm(step, None, queries), self.key_norm(step, None, keys)), 1)
            plain = normed.view(plain.shape)
        rotated = rotate(plain, *step.angles(shape.rotation, self.angles))
        write_kv(rotated[:, shape.heads :], parts[:, rotated_heads:], layer, *step.written[group], self.scales)
        rows = step.groups(shape, group, qkv.dtype)
        out = attention(rotated[:, : shape.heads], layer, rows, self.scales, self.sinks)
        return out.reshape(tokens, -1)


@dataclass(frozen=True, slots=True)
class TorchActivation:
    compute: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, step: TorchStep, gate_up: torch.Tensor) -> torch.Tensor:
        return self.compute(gate_up)


@dataclass(frozen=True, slots=True)
class TorchHead:
    norm: TorchNorm
    weight: torch.Tensor
    multiplier: float  # of logits

    def __call__(self, step: TorchStep, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        step.hidden = torch.add(residual, x, alpha=self.norm.multiplier)
        return self.logits(step, step.sampled)

    def logits(self, step: TorchStep, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of these tokens of the step, float32 [tokens, vocab]."""
        assert step.hidden is not None
        logits = torch.nn.functional.linear(self.norm(step, None, step.hidden[tokens]), self.weight).float()
        return logits.mul_(self.multiplier) if self.multiplier != 1 else logits


class TorchBackend:
    """Implements `Backend`: weights and activations in `dtype` on `device`."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, max_length: int, progress: Progress,
        kv_scales: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        config = checkpoint.config
        self.nbytes = 0
        self.further_tokens: tuple[int, ...] = ()
        self._checkpoint = checkpoint
        self._config = config
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._kv_scales = None if kv_scales is None else kv_scales.to(device)
        self._tables: dict[str, torch.Tensor] = {}
        self._head: TorchHead | None = None
        self._last: TorchStep | None = None
        self._linears: list[LinearShape] = []
        self._angles = RotaryTables(max_length, lambda table: table.to(device, dtype)[:, None])

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> TorchStep:
        return TorchStep(inputs, arena)

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        self._last = None  # frees its memory for this step
        self._last = self.begin(inputs, arena)
        return forward(self._last)

    def capture(self, forward: Forward, arena: torch.Tensor) -> None:
        """Nothing: operators are launched one by one."""

    def capture_missing(self, forward: Forward, arena: torch.Tensor) -> None:
        """Nothing, as `capture`."""

    def logits_of(self, tokens: Ints) -> torch.Tensor:
        assert self._head is not None
        assert self._last is not None
        return self._head.logits(self._last, torch.from_numpy(tokens).to(self._device))

    def adapter(self, pairs: Mapping[str, Pair]) -> TorchAdapter:
        return low_rank.fuse(pairs, self._linears, self._dtype, self._device)

    def embedding(self, name: str, rows: int, width: int) -> TorchEmbedding:
        return TorchEmbedding(self._table(name), projections.embedding_multiplier(self._checkpoint, self._dtype))

    def norm(self, name: str, width: int) -> TorchNorm:
        return TorchNorm(self._norm(name), self._config.rms_norm_eps, self._config.residual_multiplier)

    def sum(self, width: int) -> TorchSum:
        return TorchSum()

    def output_norm(self, name: str, width: int) -> TorchOutputNorm:
        return TorchOutputNorm(self._norm(name), self._config.rms_norm_eps)

    def linear(
        self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False, split: Split | None = None
    ) -> TorchLinear:
        weight = projections.weights(self._checkpoint, names, self._dtype, self._device)
        self.nbytes += weight.nbytes
        biases = projections.biases(self._checkpoint, names).to(self._device, self._dtype) if bias else None
        self._linears.append(LinearShape(tuple(names), tuple(outputs)))
        return TorchLinear(names[0], weight, biases)

    def attention(self, layer: int, shape: AttentionShape) -> TorchAttention:
        self._progress((layer + 1) / self._config.layers)
        query_norm, key_norm = (
            self.norm(name, shape.head_dim) if name else None for name in (shape.query_norm, shape.key_norm)
        )
        scales = None if self._kv_scales is None else KVScales(*self._kv_scales[layer])
        sinks = self._checkpoint.vector(shape.sinks).to(self._device, self._dtype) if shape.sinks else None
        place = groups_of(self._config).places[layer]
        return TorchAttention(place, shape, query_norm, key_norm, self._angles[shape.rotation], scales, sinks)

    def silu_mul(self, width: int) -> TorchActivation:
        return TorchActivation(silu_mul)

    def gelu_mul(self, width: int) -> TorchActivation:
        return TorchActivation(gelu_mul)

    def experts(self, shape: ExpertsShape) -> TorchExperts:
        loaded = experts.load(self._checkpoint, shape, self._dtype, self._device)
        self.nbytes += loaded.nbytes
        return loaded

    def head(self, norm: str, weight: str, rows: int, width: int) -> TorchHead:
        self._head = TorchHead(self.norm(norm, width), self._table(weight), self._config.logits_multiplier)
        return self._head

    def _norm(self, name: str) -> torch.Tensor:
        return projections.norm(self._checkpoint, name).to(self._device, self._dtype)

    def _table(self, name: str) -> torch.Tensor:
        """An embedding or output matrix, which may be one and the same."""
        if name not in self._tables:
            self._tables[name] = self._checkpoint.tensor(f"{name}.weight").to(self._device, self._dtype)
            self.nbytes += self._tables[name].nbytes
        return self._tables[name]
