"""A model on one device, with its KV arena. The core's only way to the device.

What to compute is the scheduler's; how a model is built is `models`; what computes it is a backend, which `formats`
chooses.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from time import perf_counter
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from msgspec.structs import replace

from legato_engine import processor
from legato_engine.backends.cpu.layers import CpuBackend
from legato_engine.backends.cpu.numerics import Float32, Tiles
from legato_engine.backends.interface import Backend
from legato_engine.backends.interface import Progress as Loaded
from legato_engine.backends.torch.layers import TorchBackend
from legato_engine.errors import NoDevice
from legato_engine.kvcache.layout import KVLayout
from legato_engine.layers.low_rank import Adapter, Pair
from legato_engine.models import registry
from legato_engine.models.llama import Llama
from legato_engine.processor import Processor
from legato_engine.runner import formats, inputs, sizing
from legato_engine.runner.arena import Arena, count_blocks
from legato_engine.runner.formats import Formats
from legato_engine.runner.interface import Progress
from legato_engine.sampling import constrain
from legato_engine.sampling.constrain import Masks
from legato_engine.sampling.mask_threads import MaskThreads, PendingMasks
from legato_engine.sampling.sampler import sample
from legato_engine.sampling.scores import Scores, rows_at_once
from legato_engine.scheduler.batch import Batch, Draw, Row, Sampled, Scored, StepOutput, Targets
from legato_engine.weights.checkpoint import Checkpoint
from legato_protocol.sampling_params import SamplingParams

_MANY = 64  # tokens; backends compute fewer in other ways
NUMERICS = 5  # counted up when the same weights give other KV than before: such workers exchange none


class Launched(NamedTuple):
    """A step on its way: what `collect` takes."""

    batch: Batch
    logits: torch.Tensor | None  # float32 [rows that draw, vocab]
    scored: Mapping[int, Scored]  # by row, without what is sampled
    masks: PendingMasks  # where output has to match something


class Runner:
    """Implements `StepRunner`."""

    def __init__(
        self, model: Llama, backend: Backend, arena: Arena, chosen: Formats, fingerprint: str, device: torch.device
    ) -> None:
        self.layout = arena.layout
        self.num_blocks = arena.num_blocks
        self.arena = arena
        self.weight_bytes = backend.nbytes
        sizes = f"weights {backend.nbytes >> 20:,} MiB, KV {arena.nbytes >> 20:,} MiB in {arena.num_blocks} blocks"
        self.formats = f"{chosen}; {sizes}"
        self.kv_revision = _revision(fingerprint, str(arena.layout), chosen.name, device.type, str(NUMERICS))
        self._model = model
        self._device = device
        self._scored_at_once = rows_at_once(model.config.vocab_size)
        self._backend = backend
        self._masks = MaskThreads(torch.get_num_threads())

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        block_size: int,
        kv_cache_bytes: int | None,
        dtype: str,
        kv_dtype: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        max_length: int,
        available: int | None = None,
        chunk_tokens: int = 512,
        max_batch: int = 64,
        adapter_values: int = 0,
        progress: Progress | None = None,
        instructions: Processor | None = None,
    ) -> "Runner":
        """Reads the weights and allocates the arena. Raises NoDevice, UnusableFormat and TooLittleMemory before any
        weight is read.

        `available` bytes are what all of it may take; None: that is not checked. `kv_cache_bytes` None takes what is
        left of them. `chunk_tokens` and `max_batch` say how large a step will be, `adapter_values` how many numbers
        adapters in memory will have.
        `instructions` are those to choose formats for, where they are not all that this machine has.
        """
        processor.guard_onednn(processor.detect())
        if threads:
            torch.set_num_threads(threads)
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        config, place = checkpoint.config, _device(device)
        chosen = formats.choose(dtype, instructions or processor.detect(), place, config, block_size)
        chosen = formats.with_kv(chosen, kv_dtype)
        layout = KVLayout(config.layers, config.kv_heads, block_size, config.head_dim, chosen.kv)
        if available is not None:
            needs = sizing.needs(checkpoint, chosen, chunk_tokens, max_batch, adapter_values)
            if kv_cache_bytes is None:
                kv_cache_bytes = sizing.kv_bytes(needs, layout, available, max_length, max_batch)
            sizing.check(needs, layout, kv_cache_bytes, available, max_length)
        assert kv_cache_bytes is not None
        num_blocks = count_blocks(layout, kv_cache_bytes, max_length)
        report = progress or (lambda _what, _share: None)
        with torch.inference_mode():
            backend = _backend(checkpoint, chosen, place, max_length, lambda share: report("weights", share))
            model = registry.model_class(config)(config, backend)
            arena = Arena(layout, num_blocks, place)
        return cls(model, backend, arena, chosen, checkpoint.fingerprint, place)

    def step(self, batch: Batch) -> StepOutput:
        """Copies, computes and samples. A batch without rows only copies."""
        return self.collect(self.launch(batch))

    def launch(self, batch: Batch) -> Launched:
        """Starts a step. Where the device works by itself, this returns before it is done."""
        with torch.inference_mode():
            for source, target in batch.copies:
                self.arena.copy(source, target)
            masks = self._masks.start(*_draws(batch.rows))
            logits = self.logits(batch.rows) if batch.rows else None
            return Launched(batch, logits, self._score(batch.rows), masks)

    def collect(self, launched: Launched) -> StepOutput:
        """Samples what a step has computed. Steps are collected in the order in which they were launched."""
        if launched.logits is None:
            return ()
        with torch.inference_mode():
            sampled = _sample(launched.batch.rows, launched.logits, launched.masks.result())
        scored = launched.scored
        if not scored:
            return sampled
        return tuple(replace(scored[i], sampled=row) if i in scored else row for i, row in enumerate(sampled))

    def logits(self, rows: tuple[Row, ...]) -> torch.Tensor:
        """Computes rows; float32 logits [rows that draw, vocab], in order."""
        return self._backend.logits(self._model.logits, inputs.build(rows, self.layout.block_size), self.arena.blocks)

    def _score(self, rows: tuple[Row, ...]) -> dict[int, Scored]:
        """What rows with targets ask for, of the step computed last."""
        found, first = {}, 0
        for index, row in enumerate(rows):
            if row.targets is not None:
                found[index] = self._score_row(row.targets, first)
            first += len(row.tokens)
        return found

    def _score_row(self, targets: Targets, first: int) -> Scored:
        """`first` is the index in the step of the row's first token."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # what is computed already is not part of its time
        began, scores, tokens = perf_counter(), Scores(targets.alternatives), targets.tokens
        for place in range(0, len(tokens), self._scored_at_once):
            piece = tokens[place : place + self._scored_at_once]
            scores.add(self._backend.logits_of(np.arange(len(piece)) + first + place), piece)
        packed, fault = scores.packed()
        return Scored(packed, (), perf_counter() - began, fault)

    def adapter(self, pairs: Mapping[str, Pair]) -> Adapter[Any]:
        """What rows of a batch name, of A and B by projection. May be called beside a step."""
        return self._backend.adapter(pairs)

    def warm_up_adapter(self, adapter: Adapter[Any]) -> None:
        """One token and some with this adapter, through block 0, before anything serves."""
        with torch.inference_mode():
            for count in (1, self.layout.block_size):
                self.logits((Row([0] * count, 0, [0], adapter=adapter),))

    def warm_up(self) -> None:
        """One token alone, one after a few others, and many, through block 0, before anything serves.

        Compiles or loads every kernel that steps will use and shows that the model computes.
        """
        greedy = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
        sampled = SamplingParams(max_tokens=1, seed=0, temperature=1.0, top_p=0.9)
        size = self.layout.block_size
        for count, rows, params in ((1, 1, greedy), (size, 1, sampled), (size, 1 + _MANY // size, greedy)):
            tokens = [0] * count
            self.step(Batch((Row(tokens, 0, [0], (Draw(0, count, params, tokens, count),)),) * rows))
        with torch.inference_mode():
            logits = self.logits((Row([0], 0, [0], (Draw(0, 1, greedy, [0], 1),)),))
            constrain.apply(logits, {0: bytes(-(-logits.shape[1] // 32) * 4)})


def _device(name: str) -> torch.device:
    if name != "cpu" and not torch.cuda.is_available():
        built = "finds none here" if torch.version.cuda else f"{torch.__version__} was built without it"
        raise NoDevice(f"device {name} was asked for, but torch {built}: use cpu, or a torch and a machine with CUDA")
    return torch.device(name)


def _backend(checkpoint: Checkpoint, chosen: Formats, device: torch.device, max_length: int, report: Loaded) -> Backend:
    if chosen.kernels == "torch":
        return TorchBackend(checkpoint, chosen.dtype, device, max_length, report)
    numerics = Tiles() if chosen.kernels == "tiles" else Float32(chosen.kernels)
    return CpuBackend(checkpoint, numerics, max_length, report)


def _draws(rows: tuple[Row, ...]) -> tuple[list[Draw], list[int]]:
    """All draws of a step, and the line of the logits that each is from."""
    drawing = [row for row in rows if row.draws]
    draws = [draw for row in drawing for draw in row.draws]
    return draws, [line for line, row in enumerate(drawing) for _ in row.draws]


def _sample(rows: tuple[Row, ...], logits: torch.Tensor, masks: Masks) -> tuple[tuple[Sampled, ...], ...]:
    draws, lines = _draws(rows)
    constrain.apply(logits, masks)
    sampled = sample(logits, draws, lines) if draws else []
    ends = constrain.faults(masks)
    drawn = iter(
        [Sampled(0, None, ends[line]) if line in ends else one for line, one in zip(lines, sampled, strict=True)]
    )
    return tuple(_take(drawn, len(row.draws)) for row in rows)


def _take(drawn: Iterator[Sampled], count: int) -> tuple[Sampled, ...]:
    return tuple(next(drawn) for _ in range(count))


def _revision(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:32]
