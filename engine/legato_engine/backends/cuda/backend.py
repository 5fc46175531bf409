"""The backend: makes layers, and has their steps computed by `steps`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from legato_engine.backends import projections
from legato_engine.backends.cuda import linear, low_rank
from legato_engine.backends.cuda.compiling import compiling
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.experts import CudaExperts, Mixtures, SharedMlp
from legato_engine.backends.cuda.float8 import Float8Memory
from legato_engine.backends.cuda.layers import (
    AttentionConfigurations,
    Compute,
    CudaActivation,
    CudaAttention,
    CudaEmbedding,
    CudaHead,
    CudaLinear,
    CudaNorm,
    CudaOutputNorm,
    CudaSum,
)
from legato_engine.backends.cuda.linear import DensePart, LinearPart, ProductMemory
from legato_engine.backends.cuda.low_rank import CudaAdapter, CudaLowRank
from legato_engine.backends.cuda.step import CudaStep
from legato_engine.backends.cuda.steps import CudaSteps
from legato_engine.backends.cuda.workspace import Buffer, Room, Workspace
from legato_engine.backends.interface import Forward, Progress
from legato_engine.backends.kv_groups import groups_of
from legato_engine.backends.low_rank import LinearShape
from legato_engine.errors import UnusableFormat
from legato_engine.kernels.gpu.attention.attend import AttentionSizes
from legato_engine.kernels.gpu.chips import has_float8
from legato_engine.kernels.gpu.configurations import Configuration, choose
from legato_engine.kernels.gpu.silu_mul import gelu_mul, silu_mul
from legato_engine.kernels.routing import Gating
from legato_engine.layers.experts import ExpertsShape
from legato_engine.layers.inputs import Ints, StepInputs
from legato_engine.layers.interface import AttentionShape
from legato_engine.layers.kv_factors import KVFactors
from legato_engine.layers.low_rank import Pair
from legato_engine.layers.rotary import RotaryTables
from legato_engine.layers.splits import Split
from legato_engine.weights.checkpoint import Checkpoint


class CudaBackend:
    """Implements `Backend`: weights, activations and KV in `dtype`, or KV in e4m3 with `kv_scales` [layers, 2,
    kv_heads]."""

    def __init__(
        self, checkpoint: Checkpoint, dtype: torch.dtype, device: Device, room: Room, progress: Progress,
        kv_scales: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        config = checkpoint.config
        self.nbytes = 0
        self._checkpoint = checkpoint
        self._config = config
        self._groups = groups_of(config)
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._kv_scales = None if kv_scales is None else kv_scales.to(device.place)
        self._tables: dict[str, torch.Tensor] = {}
        self._linears: list[LinearShape] = []
        self._head: CudaHead | None = None
        self._workspace = Workspace(device.place)
        self._products = ProductMemory(dtype, device, self._workspace)
        self._mixtures = Mixtures(checkpoint, self._products, self._workspace)
        heads = AttentionSizes(config.heads, config.kv_heads, config.head_dim, room.block_size)
        groups = 1 + len(self._groups.windows)
        self._steps = CudaSteps(device, room, self._workspace, heads, groups, self._linears)
        self._angles = RotaryTables(room.max_length, lambda table: table.to(device.place))

    @property
    def further_tokens(self) -> tuple[int, ...]:
        further = {*self._products.step_sizes, *self._mixtures.step_sizes}
        return tuple(sorted(size for size in further if size <= self._steps.room.tokens))

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> CudaStep:
        return self._steps.begin(inputs, self._readable(arena))

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """Raises KernelFailed."""
        with compiling(self._device.chip):
            return self._steps.compute(forward, inputs, self._readable(arena))

    def capture(self, forward: Forward, arena: torch.Tensor) -> None:
        self._steps.capture(forward, self._readable(arena))

    def capture_missing(self, forward: Forward, arena: torch.Tensor) -> None:
        self._steps.capture_missing(forward, self._readable(arena))

    def logits_of(self, tokens: Ints) -> torch.Tensor:
        step = self._steps.last
        assert self._head is not None
        assert step is not None
        assert step.hidden is not None
        given = torch.from_numpy(tokens).to(self._device.place, torch.int32)
        pieces = torch.split(given, self._steps.room.rows)
        return torch.cat([self._head.logits(step, *step.hidden, piece).clone() for piece in pieces])

    def _readable(self, arena: torch.Tensor) -> torch.Tensor:
        """The arena in a type that kernels for the chip read."""
        bytewise = self._kv_scales is not None and not has_float8(self._device.chip)
        return arena.view(torch.uint8) if bytewise else arena

    def adapter(self, pairs: Mapping[str, Pair]) -> CudaAdapter:
        return low_rank.upload(pairs, self._linears, self._dtype, self._device)

    def embedding(self, name: str, rows: int, width: int) -> CudaEmbedding:
        multiplier = projections.embedding_multiplier(self._checkpoint, self._dtype)
        return CudaEmbedding(self._table(name), multiplier, self._buffer("residual", width))

    def norm(self, name: str, width: int) -> CudaNorm:
        return self._norm(name, width, self._buffer("norm", width), self._products.float8)

    def sum(self, width: int) -> CudaSum:
        return CudaSum()

    def output_norm(self, name: str, width: int) -> CudaOutputNorm:
        configuration = self._choose("add_rms_norm", width=width)
        return CudaOutputNorm(self._norm_weight(name), self._config.rms_norm_eps, configuration)

    def linear(
        self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False, split: Split | None = None
    ) -> CudaLinear:
        layer = low_rank.next_layer(self._linears, outputs)
        self._linears.append(LinearShape(tuple(names), tuple(outputs)))
        update = CudaLowRank(layer, self._choose("shrink"), self._choose("expand"))
        return replace(self._linear(names, outputs, bias), update=update)

    def _linear(self, names: Sequence[str], outputs: Sequence[int], bias: bool = False) -> CudaLinear:
        parts = linear.load(self._checkpoint, names, self._products)
        self.nbytes += sum(part.nbytes for part in parts)
        biases = projections.biases(self._checkpoint, names).to(self._device.place, self._dtype) if bias else None
        return CudaLinear(parts, biases, self._buffer("linear", sum(outputs)))

    def attention(self, layer: int, shape: AttentionShape) -> CudaAttention:
        self._progress((layer + 1) / self._config.layers)
        norms, whole_norms = None, None
        if shape.query_norm and shape.key_norm and shape.whole_norms:
            widths = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            whole_norms = self.output_norm(shape.query_norm, widths[0]), self.output_norm(shape.key_norm, widths[1])
        elif shape.query_norm and shape.key_norm:
            norms = self._norm_weight(shape.query_norm), self._norm_weight(shape.key_norm)
        kv = None
        if self._kv_scales is not None:
            kv = KVFactors(self._kv_scales[layer], 1 / self._kv_scales[layer])
        sizes = {
            "head_dim": shape.head_dim,
            "block_size": self._steps.room.block_size,
            "group": shape.heads // shape.kv_heads,
        }
        sizes["kv_bits"] = 8 * (1 if kv else self._dtype.itemsize)
        sinks = self._checkpoint.vector(shape.sinks).to(self._device.place) if shape.sinks else None
        kernels = ("norm_rotate_write", "decode_attention", "prefill_attention")
        return CudaAttention(
            self._groups.places[layer], shape, self._angles[shape.rotation], kv, norms, whole_norms, sinks,
            self._config.rms_norm_eps,
            AttentionConfigurations(*(self._choose(kernel, **sizes) for kernel in kernels)),
            self._buffer("attention", shape.heads * shape.head_dim),
        )  # fmt: skip

    def silu_mul(self, width: int) -> CudaActivation:
        return self._activation(silu_mul, width)

    def gelu_mul(self, width: int) -> CudaActivation:
        return self._activation(gelu_mul, width)

    def experts(self, shape: ExpertsShape) -> CudaExperts:
        """Raises UnusableFormat."""
        shared = None
        if (one := shape.shared) is not None:
            if shape.gating is not Gating.SILU:
                raise UnusableFormat(f"a shared expert has no kernels for {shape.gating.value}")
            gate_up = self._linear([one.gate, one.up], [one.inner] * 2)
            shared = SharedMlp(gate_up, self.silu_mul(one.inner), self._linear([one.down], [shape.hidden]))
        mixture = self._mixtures.make(shape, shared)
        self.nbytes += mixture.nbytes
        return mixture

    def head(self, norm: str, weight: str, rows: int, width: int) -> CudaHead:
        """Makes the head for the tokens that sample, at most one for each row."""

        def buffer(operator: str, width: int, dtype: torch.dtype) -> Buffer:
            return self._workspace.buffer(operator, width, dtype, sampled=True)

        self._head = CudaHead(
            self._norm(norm, width, buffer("sampled norm", width, self._dtype)),
            self._output(weight),
            self._config.logits_multiplier,
            buffer("sampled", width, self._dtype),
            buffer("sampled residual", width, self._dtype),
            buffer("products", rows, self._dtype),
            buffer("logits", rows, torch.float32),
        )
        return self._head

    def _activation(self, compute: Compute, width: int) -> CudaActivation:
        chosen, out = self._choose("silu_mul", width=width), self._buffer("activation", width)
        return CudaActivation(compute, chosen, out, self._products.float8)

    def _norm(self, name: str, width: int, out: Buffer, float8: Float8Memory | None = None) -> CudaNorm:
        chosen = self._choose("add_rms_norm", width=width)
        config = self._config
        return CudaNorm(self._norm_weight(name), config.rms_norm_eps, config.residual_multiplier, chosen, out, float8)

    def _choose(self, kernel: str, **shape: int) -> Configuration:
        return choose(kernel, shape, self._device.chip)

    def _buffer(self, operator: str, width: int) -> Buffer:
        return self._workspace.buffer(operator, width, self._dtype)

    def _norm_weight(self, name: str) -> torch.Tensor:
        """The weight of a norm; in float32 if it has an offset, because 16 bits would round the sum."""
        dtype = torch.float32 if self._config.norm_offset else self._dtype
        return projections.norm(self._checkpoint, name).to(self._device.place, dtype)

    def _output(self, name: str) -> LinearPart:
        """The output matrix: as codes, unless it is also the table of embeddings."""
        if name in self._tables:
            return DensePart(self._tables[name])
        (part,) = linear.load(self._checkpoint, [name], self._products)
        self.nbytes += part.nbytes
        return part

    def _table(self, name: str) -> torch.Tensor:
        """A table of embeddings, which may also be the output matrix."""
        if name not in self._tables:
            self._tables[name] = projections.weights(self._checkpoint, [name], self._dtype, self._device.place)
            self.nbytes += self._tables[name].nbytes
        return self._tables[name]
