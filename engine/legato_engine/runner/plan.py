"""A runner's formats and sizes, decided before any weight is read."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from legato_engine import capacity, processor
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.kv_groups import groups_of
from legato_engine.backends.sharded.rank import Rank
from legato_engine.kvcache.layout import KVLayout
from legato_engine.models.config import ModelConfig
from legato_engine.processor import Processor
from legato_engine.ranges import Ranges
from legato_engine.runner import backends, formats, sizing
from legato_engine.runner.formats import Formats
from legato_engine.runner.ranks import degrees
from legato_engine.runner.sizing import AskedSizes, ChosenSizes, Memory, Needs
from legato_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """The most adapters in memory, the highest rank, and the count of numbers that all in memory will have."""

    in_memory: int = 8
    rank: int = 64
    values: int = 0


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The formats of a draft model, and the layout of its KV, which lies in an arena of its own."""

    checkpoint: Checkpoint
    formats: Formats
    layout: KVLayout

    @property
    def groups(self) -> int:
        """Blocks of its arena for each of the model's: one for each group of layers."""
        return 1 + len(self.layout.windows)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of its KV of the tokens in one of the model's blocks."""
        return self.groups * self.layout.block_bytes

    def length(self, longest: int) -> int:
        """Tokens of the longest sequence that it drafts for, if the model computes at most `longest`."""
        return min(longest, self.checkpoint.config.max_length)

    def needs(self, chunk_tokens: int, running: int) -> Needs:
        """The memory of its weights and workspace, in addition to its KV."""
        return sizing.needs(self.checkpoint, self.formats, chunk_tokens, running)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Options of `Runner.load`: formats, the machine, and sizes, which are None for Auto.

    `fallback` is the reason not to use kernels for a GPU; `ranges` are opened around the parts of steps. `gpu` replaces
    torch's GPU for `device`, `instructions` replaces this machine's instruction sets in the choice of formats. Weights,
    arena and workspace have to fit into `memory`; None: not checked.

    `host_kv_bytes` of the host's memory are for evicted KV, in addition to `memory`. `longest_bytes` bounds the KV of a
    sequence if `max_length` is None. `chunk_tokens`, `max_batch` and `drafts` of a sequence are the size of the largest
    step. A `draft` model takes a part of memory and KV cache. With `shared`, workers of the same node may read the
    arena. `tensor` ranks of `threads` each divide the layers; all open the weights with `quantization`.
    """

    dtype: str
    kv_dtype: str = "auto"
    fallback: str = ""
    on_kernel_failure: str = "Auto"
    ranges: Ranges = field(default_factory=Ranges)

    device: str = "cpu"
    gpu: Device | None = None
    instructions: Processor | None = None
    threads: int | None = None
    memory: Memory | None = None

    block_size: int
    kv_cache_bytes: int | None
    host_kv_bytes: int = 0
    max_length: int | None
    longest_bytes: int | None = None
    max_batch: int | None = capacity.FEWEST
    chunk_tokens: int = 512
    adapters: AdapterLimits = AdapterLimits()
    drafts: int = 0
    shared: bool = False
    draft: DraftPlan | None = None
    tensor: int = 1
    quantization: str = "None"


@dataclass(frozen=True, slots=True)
class RunnerPlan:
    """The formats and sizes of a runner, and its GPU, if it has one."""

    checkpoint: Checkpoint
    formats: Formats
    layout: KVLayout
    sizes: ChosenSizes
    gpu: Device | None = None
    drafts: int = 0
    ranks: int = 1


def layout_of(config: ModelConfig, block_size: int, kv: str) -> KVLayout:
    """The layout of a model's KV in the format `kv`."""
    groups = groups_of(config)
    return KVLayout(groups.per_block, config.kv_heads, block_size, config.head_dim, kv, groups.windows)


def plan_draft(checkpoint: Checkpoint, options: RunnerOptions) -> DraftPlan:
    """Decides the formats of a draft model for a model with these options. Raises NoDevice, UnusableFormat."""
    chosen = _formats(checkpoint, options, options.gpu or backends.gpu(options.device), "Auto")
    return DraftPlan(checkpoint, chosen, layout_of(checkpoint.config, options.block_size, chosen.kv))


def draft_options(options: RunnerOptions, num_blocks: int, max_length: int, max_running: int) -> RunnerOptions:
    """The options of the runner of `options.draft`, for a model with these sizes."""
    draft = options.draft
    assert draft is not None
    return RunnerOptions(
        dtype=options.dtype,
        fallback=options.fallback,
        on_kernel_failure=options.on_kernel_failure,
        ranges=options.ranges,
        device=options.device,
        gpu=options.gpu,
        instructions=options.instructions,
        threads=options.threads,
        block_size=options.block_size,
        kv_cache_bytes=num_blocks * draft.bytes_per_block,
        max_length=draft.length(max_length),
        max_batch=max_running,
        chunk_tokens=options.chunk_tokens,
    )


def layout_of_ranks(layout: KVLayout, ranks: int, gpu: Device | None) -> KVLayout:
    """The layout of all ranks together: on GPUs, ranks with the same KV heads have copies of a block."""
    copies = 1 if gpu is None else Rank(0, ranks).kv_copies(layout.kv_heads)
    return replace(layout, further_bytes=(copies - 1) * layout.block_bytes)


def with_draft(
    needs: Callable[[int], Needs], layout: KVLayout, draft: DraftPlan | None, chunk_tokens: int
) -> tuple[Callable[[int], Needs], KVLayout]:
    """The memory for a number of running sequences and the layout of KV, including a draft model's."""
    if draft is None:
        return needs, layout
    together = replace(layout, further_bytes=layout.further_bytes + draft.bytes_per_block)
    return lambda running: needs(running) + draft.needs(chunk_tokens, running), together


def _formats(checkpoint: Checkpoint, options: RunnerOptions, gpu: Device | None, kv_dtype: str) -> Formats:
    here = options.instructions or processor.detect()
    own = Rank(0, options.tensor).config(checkpoint.config)
    chosen = formats.choose(options.dtype, here, gpu, own, options.block_size, options.fallback, kv_dtype)
    return formats.allowed(chosen, checkpoint, options.on_kernel_failure)


def make_plan(checkpoint: Checkpoint, options: RunnerOptions) -> RunnerPlan:
    """Decides without reading a weight. Raises NoDevice, UnusableFormat, UnsupportedFormat, UnsupportedModel and
    TooLittleMemory."""
    degrees.check_model(checkpoint, options.tensor)
    if options.gpu is None and options.device != "cpu":
        degrees.check_gpus(options.tensor, torch.cuda.device_count())
    config, gpu = checkpoint.config, options.gpu or backends.gpu(options.device)
    chosen = _formats(checkpoint, options, gpu, options.kv_dtype)
    degrees.check_codes(checkpoint, chosen, options.tensor)
    chunk, own = options.chunk_tokens, layout_of(config, options.block_size, chosen.kv)
    ranks = partial(
        sizing.needs, checkpoint, chosen, chunk, adapter_values=options.adapters.values, ranks=options.tensor
    )
    needs, layout = with_draft(ranks, layout_of_ranks(own, options.tensor, gpu), options.draft, chunk)
    asked = AskedSizes(options.kv_cache_bytes, options.max_length, options.max_batch)
    declared = config.max_length
    if options.longest_bytes is not None:
        declared = sizing.longest_within(declared, own, options.longest_bytes, chunk)
    sizes = sizing.choose(needs, layout, declared, asked, options.memory, chunk)
    return RunnerPlan(checkpoint, chosen, layout, sizes, gpu, options.drafts, options.tensor)
