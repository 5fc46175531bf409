"""A runner's formats and sizes, decided before any weight is read."""

from dataclasses import dataclass, field
from functools import partial

from legato_engine import capacity, processor
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.kv_groups import groups_of
from legato_engine.kvcache.layout import KVLayout
from legato_engine.models.config import ModelConfig
from legato_engine.processor import Processor
from legato_engine.ranges import Ranges
from legato_engine.runner import backends, formats, sizing
from legato_engine.runner.formats import Formats
from legato_engine.runner.sizing import AskedSizes, ChosenSizes, Memory
from legato_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """The most adapters in memory, the highest rank, and the count of numbers that all in memory will have."""

    in_memory: int = 8
    rank: int = 64
    values: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Options of `Runner.load`: formats, the machine, and sizes, which are None for Auto.

    `fallback` is the reason not to use kernels for a GPU; `ranges` are opened around the parts of steps. `gpu` replaces
    torch's GPU for `device`, `instructions` replaces this machine's instruction sets in the choice of formats. Weights,
    arena and workspace have to fit into `memory`; None: not checked.

    `host_kv_bytes` of the host's memory are for evicted KV, in addition to `memory`. `longest_bytes` bounds the KV of a
    sequence if `max_length` is None. `chunk_tokens`, `max_batch` and `drafts` of a
    sequence are the size of the largest step. With `shared`, workers of the same node may read the arena.
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


@dataclass(frozen=True, slots=True)
class RunnerPlan:
    """The formats and sizes of a runner, and its GPU, if it has one."""

    checkpoint: Checkpoint
    formats: Formats
    layout: KVLayout
    sizes: ChosenSizes
    gpu: Device | None = None
    drafts: int = 0


def layout_of(config: ModelConfig, block_size: int, kv: str) -> KVLayout:
    """The layout of a model's KV in the format `kv`."""
    groups = groups_of(config)
    return KVLayout(groups.per_block, config.kv_heads, block_size, config.head_dim, kv, groups.windows)


def make_plan(checkpoint: Checkpoint, options: RunnerOptions) -> RunnerPlan:
    """Decides without reading a weight. Raises NoDevice, UnusableFormat and TooLittleMemory."""
    config, gpu = checkpoint.config, options.gpu or backends.gpu(options.device)
    here = options.instructions or processor.detect()
    chosen = formats.choose(options.dtype, here, gpu, config, options.block_size, options.fallback, options.kv_dtype)
    chosen = formats.allowed(chosen, checkpoint, options.on_kernel_failure)
    layout = layout_of(config, options.block_size, chosen.kv)
    needs = partial(sizing.needs, checkpoint, chosen, options.chunk_tokens, adapter_values=options.adapters.values)
    asked = AskedSizes(options.kv_cache_bytes, options.max_length, options.max_batch)
    declared = config.max_length
    if options.longest_bytes is not None:
        declared = sizing.longest_within(declared, layout, options.longest_bytes, options.chunk_tokens)
    sizes = sizing.choose(needs, layout, declared, asked, options.memory, options.chunk_tokens)
    return RunnerPlan(checkpoint, chosen, layout, sizes, gpu, options.drafts)
