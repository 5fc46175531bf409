"""The runner: holds weights and KV arena, computes one batch at a time. The core's only way to the device.

What to compute is the scheduler's; how a model is built is `models`; which formats are used is `formats`.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Protocol

import numba
import torch

from legato_engine import formats, processor, step_inputs
from legato_engine.formats import Formats
from legato_engine.kvcache.arena import Arena, count_blocks
from legato_engine.kvcache.layout import KVLayout
from legato_engine.models import registry
from legato_engine.models.arithmetic import Float32, Tiles
from legato_engine.models.checkpoint import Checkpoint
from legato_engine.models.llama import Llama
from legato_engine.models.llama_compiled import LlamaCompiled
from legato_engine.processor import Processor
from legato_engine.sampling.sampler import sample
from legato_engine.scheduler.batch import Batch, Draw, Row, Sampled, StepOutput
from legato_protocol.stream import SamplingParams

Model = Llama | LlamaCompiled
Progress = Callable[[str, float], None]  # what is being done, and how much of it is (0 … 1)


class KVArena(Protocol):
    """Memory of all KV blocks, one allocation; block i begins at `address + i * layout.block_bytes`."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def block(self, index: int) -> memoryview: ...


class StepRunner(Protocol):
    """What the core needs from a runner. `kv_revision` is equal for workers that may exchange KV."""

    layout: KVLayout
    num_blocks: int
    kv_revision: str
    formats: str

    @property
    def arena(self) -> KVArena: ...
    def step(self, batch: Batch) -> StepOutput: ...
    def warm_up(self) -> None: ...


class Runner:
    """A model on one device, with its KV arena."""

    def __init__(self, model: Model, arena: Arena, chosen: Formats, fingerprint: str, device: torch.device) -> None:
        self.layout = arena.layout
        self.num_blocks = arena.num_blocks
        self.arena = arena
        sizes = f"weights {model.nbytes >> 20:,} MiB, KV {arena.nbytes >> 20:,} MiB in {arena.num_blocks} blocks"
        self.formats = f"{chosen}; {sizes}"
        self.kv_revision = _revision(fingerprint, str(arena.layout), chosen.name)
        self._model = model
        self._device = device
        self._dtype = chosen.dtype
        self._paged = chosen.kernels != "torch"

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        block_size: int,
        kv_cache_bytes: int,
        dtype: str,
        device: str = "cpu",
        threads: int | None = None,
        max_length: int,
        progress: Progress | None = None,
        instructions: Processor | None = None,
    ) -> "Runner":
        """Reads the weights and allocates the arena. Raises TooLittleMemory before any weight is read.

        `instructions` are those to choose formats for, where they are not all that this machine has.
        """
        processor.guard_onednn(processor.detect())
        if threads:
            torch.set_num_threads(threads)
            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        config, place = checkpoint.config, torch.device(device)
        chosen = formats.choose(dtype, instructions or processor.detect(), place, config, block_size)
        layout = KVLayout(config.layers, config.kv_heads, block_size, config.head_dim, chosen.kv)
        num_blocks = count_blocks(layout, kv_cache_bytes, max_length)
        report = progress or (lambda _what, _share: None)
        with torch.inference_mode():
            model = _build(checkpoint, chosen, place, max_length, lambda share: report("weights", share))
            arena = Arena(layout, num_blocks, place)
        return cls(model, arena, chosen, checkpoint.fingerprint, place)

    def step(self, batch: Batch) -> StepOutput:
        """Copies, computes and samples. A batch without rows only copies."""
        with torch.inference_mode():
            for source, target in batch.copies:
                self.arena.copy(source, target)
            return self._sample(batch.rows, self.logits(batch.rows)) if batch.rows else ()

    def logits(self, rows: tuple[Row, ...]) -> torch.Tensor:
        """Computes rows; float32 logits [rows that draw, vocab], in order."""
        config = self._model.config
        inputs = step_inputs.build(
            rows, self.layout, config.heads // config.kv_heads, config.sliding_window, self._dtype, self._device,
            self._paged,
        )  # fmt: skip
        return self._model.logits(inputs, self.arena.blocks)

    def warm_up(self) -> None:
        """One token alone and one after a few others, through block 0, before anything serves.

        Compiles or loads every kernel that steps will use and shows that the model computes.
        """
        params = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
        for count in (1, self.layout.block_size):
            tokens = [0] * count
            self.step(Batch((Row(tokens, 0, [0], (Draw(0, count, params, tokens, count),)),)))

    def _sample(self, rows: tuple[Row, ...], logits: torch.Tensor) -> StepOutput:
        drawing = [row for row in rows if row.draws]
        draws = [draw for row in drawing for draw in row.draws]
        lines = [line for line, row in enumerate(drawing) for _ in row.draws]
        drawn = iter(sample(logits, draws, lines) if draws else ())
        return tuple(_take(drawn, len(row.draws)) for row in rows)


def _build(
    checkpoint: Checkpoint, chosen: Formats, device: torch.device, max_length: int, report: Callable[[float], None]
) -> Model:
    if chosen.kernels == "torch":
        return registry.model_class(checkpoint.config)(checkpoint, chosen.dtype, device, max_length, report)
    arithmetic = Tiles() if chosen.kernels == "tiles" else Float32(codes=chosen.kernels == "codes")
    return LlamaCompiled(checkpoint, arithmetic, max_length, report)


def _take(drawn: Iterator[Sampled], count: int) -> tuple[Sampled, ...]:
    return tuple(next(drawn) for _ in range(count))


def _revision(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:32]
