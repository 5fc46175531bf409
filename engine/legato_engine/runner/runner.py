"""A model on one device, with its KV arena: the core's only access to the device.

The scheduler decides the steps, `models` has the layers' order, and a backend chosen by `formats` computes them.
"""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numba
import numpy as np
import torch
from msgspec.structs import replace

from legato_engine import processor
from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.interface import Backend
from legato_engine.kvcache.window_table import WindowTable
from legato_engine.layers.low_rank import LowRankAdapter, Pair
from legato_engine.models import registry
from legato_engine.models.llama import Llama
from legato_engine.ranges import SAMPLING, STEP, Ranges
from legato_engine.runner import backends, cores, inputs
from legato_engine.runner.arena import Arena, count_blocks
from legato_engine.runner.interface import Progress
from legato_engine.runner.plan import RunnerOptions, RunnerPlan, make_plan
from legato_engine.runner.ranks import loading as ranks
from legato_engine.runner.ranks.loading import ArenaSizes
from legato_engine.sampling import constrain
from legato_engine.sampling.constrain import Masks
from legato_engine.sampling.mask_threads import MaskThreads, PendingMasks
from legato_engine.sampling.sampler import sample
from legato_engine.sampling.scores import Scores, rows_per_slice
from legato_engine.scheduler.batch import Batch, Draw, Row, Sampled, Scored, StepOutput, Targets
from legato_engine.transfer.device.cuda import CudaEvent
from legato_engine.transfer.device.interface import DeviceEvent
from legato_engine.weights.checkpoint import Checkpoint
from legato_protocol.sampling.parameters import SamplingParams

if TYPE_CHECKING:
    from legato_engine.sampling.device_sampler import DeviceSampler, PendingSamples

_MANY = 64  # tokens; backends have other kernels for fewer
_LEAST_BLOCK = 16  # tokens of a block on a GPU
NUMERICS = 8  # incremented when the same weights give other KV than before: such workers must not exchange KV


class Launched(NamedTuple):
    """A launched step, the argument of `collect`."""

    batch: Batch
    logits: torch.Tensor | None  # float32 [sampled tokens, vocab]
    scored: Mapping[int, Scored]  # by row, without samples
    masks: PendingMasks  # of rows with structured output
    pending: "PendingSamples | None" = None  # samples, if a GPU draws them as part of the step


class Runner:
    """Implements `StepRunner`."""

    def __init__(
        self,
        plan: RunnerPlan,
        model: Llama,
        backend: Backend,
        arena: Arena,
        sampler: "DeviceSampler | None",
        ranges: Ranges,
    ) -> None:
        chosen, checkpoint, sizes = plan.formats, plan.checkpoint, plan.sizes
        self.layout = plan.layout
        self.num_blocks = arena.num_blocks
        self.arena = arena
        self.ranges = ranges
        self.weight_bytes = backend.nbytes
        self.max_length = sizes.max_length
        self.max_running = sizes.max_running
        memory = f"weights {backend.nbytes >> 20:,} MiB, KV {arena.nbytes >> 20:,} MiB in {arena.num_blocks} blocks"
        if windows := plan.layout.windows:
            memory = f"{memory} of {1 + len(windows)} groups of layers, {len(windows)} of them with windows"
        if arena.host.count:
            memory = (
                f"{memory}, {arena.host.nbytes >> 20:,} MiB of the host's memory for {arena.host.count} evicted ones"
            )
        if plan.ranks > 1:
            memory = f"{memory}, {plan.ranks} ranks"
        if quantized := chosen.quantized(checkpoint):
            memory = f"{quantized}; {memory}"
        self.formats = f"{chosen}; {memory}; {sizes.sequences(plan.layout, checkpoint.config.max_length)}"
        self.fallback = chosen.fallback
        self.weights_fallback = chosen.weights_fallback(checkpoint)
        self.kv_revision = _revision(
            checkpoint.fingerprint, repr(model.config.rope_scaling), str(plan.layout), chosen.name,
            chosen.products(checkpoint), "cuda" if plan.gpu else "cpu", str(NUMERICS),
        )  # fmt: skip
        self.written: DeviceEvent | None = None
        self._block_0 = (WindowTable(0, [0]),) * len(plan.layout.windows)  # for the warm-up
        self._pending: PendingSamples | None = None  # of the step launched last
        self._drafts, self._ranks = plan.drafts, plan.ranks
        self._model = model
        self._gpu = plan.gpu
        self._sampler = sampler
        self._scored_per_slice = rows_per_slice(model.config.vocab_size)
        self._backend = backend
        self._masks = MaskThreads(torch.get_num_threads(), cores.release)

    @classmethod
    def load(cls, checkpoint: Checkpoint, options: RunnerOptions, progress: Progress | None = None) -> "Runner":
        """Reads the weights and allocates the arena. Raises NoDevice, UnusableFormat and TooLittleMemory before any
        weight is read."""
        processor.guard_onednn(processor.detect())
        if options.threads:
            torch.set_num_threads(options.threads)
            numba.set_num_threads(min(options.threads, numba.config.NUMBA_NUM_THREADS))
        plan = make_plan(checkpoint, options)
        chosen, layout, sizes, gpu = plan.formats, plan.layout, plan.sizes, plan.gpu
        rows = max(sizes.max_running, 1 + options.drafts)  # tokens that are sampled
        blocks, limits = layout.blocks_for(sizes.max_length), options.adapters
        room = Room(
            options.chunk_tokens + rows, rows, blocks, layout.block_size, limits.in_memory, limits.rank
        )  # fmt: skip
        report = progress or (lambda _what, _share: None)
        config = checkpoint.config.serving(sizes.max_length)
        num_blocks = count_blocks(layout, sizes.kv_cache_bytes, sizes.max_length, options.chunk_tokens)
        slots = options.host_kv_bytes // layout.block_bytes
        sums = ""
        with torch.inference_mode():
            backend: Backend
            if options.tensor > 1:
                sizes_of_arena = ArenaSizes(num_blocks, slots)
                backend, model, arena, sums = ranks.lead(checkpoint, plan, options, room, sizes_of_arena, report)
            else:
                scales = backends.scales_of_kv(checkpoint, chosen)
                backend = backends.make(checkpoint, chosen, gpu, room, lambda share: report("weights", share), scales)
                model = registry.model_class(config)(config, backend)
                place = gpu.place if gpu else torch.device("cpu")
                arena = Arena(layout, num_blocks, place, slots, shared=options.shared)
            sampler = backends.sampler(chosen, gpu, config.vocab_size, rows)
        runner = cls(plan, model, backend, arena, sampler, options.ranges)
        if sums:
            runner.formats = f"{runner.formats}; {sums}"
        return runner

    @property
    def ahead(self) -> "Runner | None":
        """This runner if samples stay on a device, where the next step reads them; otherwise None."""
        return self if self._sampler is not None else None

    def step(self, batch: Batch) -> StepOutput:
        """Moves and copies blocks, computes and samples. A batch without rows does not compute."""
        return self.collect(self.launch(batch))

    def launch(self, batch: Batch) -> Launched:
        """Starts a step, and returns before it is done if the device works asynchronously.

        With `ahead`, tokens of rows may be samples of the step launched before."""
        with torch.inference_mode(), self.ranges.part(STEP):
            if batch.moves:
                self.arena.move(batch.moves)
            for source, target in batch.copies:
                self.arena.copy(source, target)
            draws, lines = _draws(batch.rows)
            masks = self._masks.start(draws, lines)
            with self.ranges.forward(batch.rows):
                logits = self.logits(batch.rows, self._pending) if batch.rows else None
            self._pending = pending = None
            if self._sampler is not None and logits is not None:  # before targets' logits, which use the same memory
                with self.ranges.part(SAMPLING):
                    self._pending = pending = self._sampler.launch(logits, draws, lines, masks.result())
            scored = self._score(batch.rows)
            if self._gpu is not None and self._gpu.place.type == "cuda":
                self.written = CudaEvent(self._gpu.place)
            return Launched(batch, logits, scored, masks, pending)

    def collect(self, launched: Launched) -> StepOutput:
        """Samples from a step's logits, or waits for the device's samples. Steps are collected in the order in which
        they were launched."""
        if launched.logits is None:
            return ()
        masks = launched.masks.result()
        self.capture_missing()
        with torch.inference_mode(), self.ranges.part(SAMPLING):
            if self._sampler is not None and launched.pending is not None:
                drawn = self._sampler.collect(launched.pending)
            else:
                drawn = _sample(launched.batch.rows, launched.logits, masks)
        sampled = _by_row(launched.batch.rows, drawn, masks)
        scored = launched.scored
        if not scored:
            return sampled
        return tuple(replace(scored[i], sampled=row) if i in scored else row for i, row in enumerate(sampled))

    def logits(self, rows: tuple[Row, ...], before: "PendingSamples | None" = None) -> torch.Tensor:
        """Computes rows, whose tokens may be samples of `before`; float32 logits [sampled tokens, vocab], in order."""
        drawn = before.sampled if before is not None and before.parts else None
        given = inputs.build(rows, self.layout.block_size, drawn)
        assert len(given.windows) == len(self.layout.windows), "rows lack tables of windows"
        return self._backend.logits(self._model.logits, given, self.arena.blocks)

    def _score(self, rows: tuple[Row, ...]) -> dict[int, Scored]:
        """The scores of rows with targets, by row, from the step computed last."""
        scored, first = {}, 0
        for index, row in enumerate(rows):
            if row.targets is not None:
                scored[index] = self._score_row(row.targets, first)
            first += len(row.tokens)
        return scored

    def _score_row(self, targets: Targets, first: int) -> Scored:
        """`first` is the index in the step of the row's first token."""
        if self._gpu is not None:
            self._gpu.mark()()  # earlier work does not count as this row's time
        began, scores, tokens = perf_counter(), Scores(targets.alternatives), targets.tokens
        for place in range(0, len(tokens), self._scored_per_slice):
            piece = tokens[place : place + self._scored_per_slice]
            scores.add(self._backend.logits_of(np.arange(len(piece)) + first + place), piece)
        packed, fault = scores.pack()
        return Scored(packed, (), perf_counter() - began, fault)

    def adapter(self, pairs: Mapping[str, Pair]) -> LowRankAdapter:
        """An adapter for rows of a batch, from A and B by projection. May be called concurrently with a step."""
        return self._backend.adapter(pairs)

    def warm_up_adapter(self, adapter: LowRankAdapter) -> None:
        """Computes one token, a block of tokens and many with this adapter, before the worker serves."""
        size = self.layout.block_size
        with torch.inference_mode():
            for count, rows in ((1, 1), (size, 1), (size, 1 + _MANY // size)):
                self.logits((Row([0] * count, 0, [0], adapter=adapter, windows=self._block_0),) * rows)

    def between_layers(self, give_way: Callable[[], None]) -> None:
        """Sets the function that steps with many tokens call between two layers, unless other ranks wait for them."""
        if self._ranks == 1:
            self._model.between_layers = give_way

    def capture(self) -> None:
        """Ends the warm-up, also of adapters: on a GPU, all later steps are replayed."""
        with torch.inference_mode():
            self._backend.capture(self._model.logits, self.arena.blocks)

    def capture_missing(self) -> None:
        """Captures the size of the step launched last, if it was not yet. The device computes meanwhile."""
        with torch.inference_mode():
            self._backend.capture_missing(self._model.logits, self.arena.blocks)

    @property
    def further_steps(self) -> tuple[tuple[int, int], ...]:
        """Tokens of a row and number of rows of further steps that use kernels of their own."""
        return tuple([(_LEAST_BLOCK, tokens // _LEAST_BLOCK) for tokens in self._backend.further_tokens])

    def warm_up(self) -> None:
        """Computes one token, one after a few others, and many, through block 0, before the worker serves.

        Compiles or loads every kernel that steps will use and shows that the model computes. Raises KernelFailed.
        """
        greedy = SamplingParams(max_tokens=1, seed=0, temperature=0.0)
        sampled = SamplingParams(max_tokens=1, seed=0, temperature=1.0, top_p=0.9)
        size = self.layout.block_size
        further = [(count, rows, greedy) for count, rows in self.further_steps]
        for count, rows, params in ((1, 1, greedy), (size, 1, sampled), (size, 1 + _MANY // size, greedy), *further):
            tokens = [0] * count
            draws = (Draw(0, count, params, tokens, count),)
            self.step(Batch((Row(tokens, 0, [0], draws, windows=self._block_0),) * rows))
        if drafts := min(self._drafts, size - 1):
            tokens = [0] * (1 + drafts)
            after = tuple([Draw(0, count, greedy, tokens, 1) for count in range(1, 2 + drafts)])
            self.step(Batch((Row(tokens, 0, [0], after, windows=self._block_0, drafts=drafts),)))
        decoding = Row([0], 0, [0], (Draw(0, 1, greedy, [0], 1),), windows=self._block_0)
        with torch.inference_mode():
            logits = self.logits((decoding,))
            if self._sampler is not None:
                self._sampler.warm_up()
            else:
                constrain.apply(logits, {0: bytes(-(-logits.shape[1] // 32) * 4)})


def _draws(rows: tuple[Row, ...]) -> tuple[list[Draw], list[int]]:
    """All draws of a step, and the row of the logits of each."""
    draws, lines, line = list[Draw](), list[int](), 0
    for row in rows:
        if row.draws:
            draws += row.draws
            lines += range(line, line + len(row.draws)) if row.drafts else [line] * len(row.draws)
            line += 1 + row.drafts
    return draws, lines


def _sample(rows: tuple[Row, ...], logits: torch.Tensor, masks: Masks) -> list[Sampled]:
    draws, lines = _draws(rows)
    constrain.apply(logits, masks)
    return sample(logits, draws, lines) if draws else []


def _by_row(rows: tuple[Row, ...], sampled: list[Sampled], masks: Masks) -> tuple[tuple[Sampled, ...], ...]:
    """The samples of each row; a fault replaces the sample of a row whose grammar allows no token."""
    ends = constrain.faults(masks)
    if not ends and len(rows) == len(sampled) and all(len(row.draws) == 1 for row in rows):
        return tuple([(one,) for one in sampled])
    lines = _draws(rows)[1]
    drawn = iter(
        [Sampled(0, None, ends[line]) if line in ends else one for line, one in zip(lines, sampled, strict=True)]
    )
    return tuple(_take(drawn, len(row.draws)) for row in rows)


def _take(drawn: Iterator[Sampled], count: int) -> tuple[Sampled, ...]:
    return tuple(next(drawn) for _ in range(count))


def _revision(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:32]
