"""A whole model whose weights are made from a seed, computed by the backend for GPUs as a worker computes one.

What a worker's runner does with rows and memory is done here once more, as the runner needs packages that are not on a
machine with torch, triton and numpy alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
from made_codes import form_of, made

from legato_engine.backends.cuda.backend import CudaBackend
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.kv_groups import groups_of
from legato_engine.kernels.routing import ExpertRouting
from legato_engine.layers.inputs import AdaptedTokens, Ints, StepInputs, WindowInputs
from legato_engine.layers.low_rank import LowRankAdapter, Pair
from legato_engine.models import registry
from legato_engine.models.config import ModelConfig
from legato_engine.models.hyperparameters.experts import ExpertsConfig
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import expected_shapes, projections
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.grouped import Grouped, GroupedForm

LLAMA_3_8B = ModelConfig(
    architecture="LlamaForCausalLM", layers=32, hidden_size=4096, heads=32, kv_heads=8, head_dim=128,
    intermediate_size=14336, vocab_size=128256, max_length=8192, rope_theta=500000.0, rope_scaling=None,
    rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None, attention_bias=False, mlp_bias=False,
)  # fmt: skip

QWEN3_30B_A3B = replace(
    LLAMA_3_8B, architecture="Qwen3MoeForCausalLM", layers=48, hidden_size=2048, kv_heads=4, intermediate_size=6144,
    vocab_size=151936, rope_theta=1e7, rms_norm_eps=1e-6, experts=ExpertsConfig(ExpertRouting(128, 8), 768),
)  # fmt: skip


class MadeWeights(Checkpoint):
    """Random weights that depend on their name and on `seed`; of one seed, a processor and a GPU make others.

    Activations, scores of attention and, where embeddings are not tied, logits are about 1 in size.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, place: torch.device, seed: int = 0) -> None:
        self.config = config
        self._dtype = dtype
        self._place = place
        self._seed = seed
        self._shapes = expected_shapes(config)

    @property
    def nbytes(self) -> int:
        return sum(int(np.prod(shape)) for shape in self._shapes.values()) * self._dtype.itemsize

    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        return {}

    def names(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def tensor(self, name: str) -> torch.Tensor:
        shape = self._shapes[name]
        draw = torch.Generator(self._place).manual_seed(crc32(name.encode()) + self._seed)
        made = torch.randn(shape, generator=draw, dtype=self._dtype, device=self._place)
        if len(shape) == 1:
            return made.mul_(0.1).add_(1)
        return made if "embed_tokens" in name else made.mul_(shape[1] ** -0.5)


class MadeCodes(MadeWeights):
    """The same with linear layers of random codes, in a form of `made_codes.FORMS`."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, place: torch.device, form: str) -> None:
        super().__init__(config, dtype, place)
        self._form = form

    def quantized(self) -> frozenset[str]:
        return frozenset(name for name in self._shapes if name.endswith("_proj.weight"))

    def grouped_form(self, name: str) -> GroupedForm | None:
        return form_of(self._form, self._shapes[name][1]) if name in self.quantized() else None

    def grouped(self, name: str, _place: torch.device | None = None) -> Grouped | None:
        if name not in self.quantized():
            return None
        with torch.random.fork_rng():
            torch.manual_seed(crc32(name.encode()) + self._seed)
            return made(self._form, *self._shapes[name], place=self._place)

    def tensor(self, name: str) -> torch.Tensor:
        weight = self.grouped(name)
        return super().tensor(name) if weight is None else weight.floats()


class Row(NamedTuple):
    """Tokens of one sequence from position `start` on, and its block table. A token of -1 - j is the j-th drawn. The
    last `samples` tokens sample."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    samples: int = 1
    adapter: LowRankAdapter | None = None


class MadeModel:
    """Layers of the backend on `device`, and an arena of `blocks`, whose content is up to the caller."""

    def __init__(self, weights: MadeWeights, dtype: torch.dtype, device: Device, room: Room, blocks: int):
        config = weights.config
        self.block_size, self._most_tokens = room.block_size, room.tokens
        with torch.inference_mode():
            self.backend = CudaBackend(weights, dtype, device, room, lambda _share: None)
            self.model = registry.model_class(config)(config, self.backend)
            self.groups = groups_of(config)
            self.blocks = blocks  # of each group of layers
            total = blocks * (1 + len(self.groups.windows))
            shape = (total, config.kv_heads, self.groups.per_block, 2, room.block_size, config.head_dim)
            self.arena = torch.empty(shape, dtype=dtype, device=device.place)

    def step(self, rows: Sequence[Row], drawn: torch.Tensor | None = None) -> torch.Tensor:
        """Float32 logits [tokens that sample, vocab], in memory that the next step overwrites. After `capture`, it is
        replayed."""
        with torch.inference_mode():
            return self.backend.logits(self.model.logits, self.inputs(rows, drawn), self.arena)

    def inputs(self, rows: Sequence[Row], drawn: torch.Tensor | None) -> StepInputs:
        """The inputs of a step; a row's blocks of further groups lie in further parts of the arena."""
        inputs, windows = step_inputs(rows, self.block_size, drawn), []
        for group in range(1, 1 + len(self.groups.windows)):
            first = group * self.blocks
            windows.append(WindowInputs(inputs.slots + first * self.block_size, inputs.tables + first))
        return replace(inputs, windows=tuple(windows))

    def adapter(self, rank: int) -> LowRankAdapter:
        """An adapter of random matrices for all projections, which changes results by about a tenth."""
        sizes = projections(self.model.config)
        return self.backend.adapter(
            {n: Pair(torch.randn(rank, i) * i**-0.5, torch.randn(o, rank) / 10) for n, (o, i) in sizes.items()}
        )

    def eager(self, rows: Sequence[Row], drawn: torch.Tensor | None = None) -> torch.Tensor:
        """The same by launching kernel after kernel; of all rows, those that only pad the step too."""
        with torch.inference_mode():
            step = self.backend.begin(self.inputs(rows, drawn), self.arena)
            return self.model.logits(step)

    def capture(self) -> None:
        """Launches every kernel, in block 0 of the arena, as a worker's warm-up does, then captures usual steps."""
        for tokens in (1, 2, 16, 64, 80, *self.backend.further_tokens):
            if tokens <= self._most_tokens:
                self.eager([Row([0] * tokens, 0, [0] * -(-tokens // self.block_size))])
        with torch.inference_mode():
            self.backend.capture(self.model.logits, self.arena)

    def capture_missing(self) -> None:
        """Captures the size of the last step, if it was padded to a larger one."""
        with torch.inference_mode():
            self.backend.capture_missing(self.model.logits, self.arena)

    def every(self, count: int) -> torch.Tensor:
        """Logits after each of the `count` tokens of the step computed last, in memory of their own."""
        with torch.inference_mode():
            return self.backend.logits_of(np.arange(count))


def step_inputs(rows: Sequence[Row], block_size: int, drawn: torch.Tensor | None = None) -> StepInputs:
    """`drawn`: int32 tokens on the device that rows may name."""
    counts = np.array([len(row.tokens) for row in rows])
    begins = np.array([row.start for row in rows])
    starts = np.concatenate((np.zeros(1, np.int64), counts.cumsum()))
    tables = np.zeros((len(rows), max(len(row.blocks) for row in rows)), np.int64)
    for table, row in zip(tables, rows, strict=True):
        table[: len(row.blocks)] = row.blocks
    of = np.repeat(np.arange(len(rows)), counts)
    positions = np.arange(len(of)) - starts[of] + begins[of]
    return StepInputs(
        tokens=np.concatenate([np.array(row.tokens, np.int64) for row in rows]),
        positions=positions,
        slots=tables[of, positions // block_size] * block_size + positions % block_size,
        starts=starts,
        lengths=begins + counts,
        tables=tables,
        sampled=np.concatenate([np.arange(end - row.samples, end) for end, row in zip(starts[1:], rows, strict=True)]),
        drawn=drawn,
        adapted=_adapted(rows, starts),
    )


def _adapted(rows: Sequence[Row], starts: Ints) -> tuple[AdaptedTokens, ...]:
    tokens: dict[LowRankAdapter, list[Ints]] = {}
    for row, first, end in zip(rows, starts, starts[1:], strict=False):
        if row.adapter is not None:
            tokens.setdefault(row.adapter, []).append(np.arange(first, end))
    return tuple([AdaptedTokens(adapter, np.concatenate(of)) for adapter, of in tokens.items()])
