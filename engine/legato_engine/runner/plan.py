"""A runner's formats and sizes, decided before any weight is read."""

from dataclasses import dataclass
from functools import partial

from legato_engine import capacity, processor
from legato_engine.backends.cuda.device import Device
from legato_engine.kvcache.layout import KVLayout
from legato_engine.processor import Processor
from legato_engine.runner import backends, formats, sizing
from legato_engine.runner.formats import Formats
from legato_engine.runner.sizing import AskedSizes, ChosenSizes, Memory
from legato_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Options of `Runner.load`.

    Weights, arena and workspace have to fit into `memory`; None: not checked. `kv_cache_bytes`, `max_length` and
    `max_batch` are None for Auto. `chunk_tokens` and `max_batch` are the size of the largest step, `adapter_values`
    the count of numbers that adapters in memory will have. `longest_bytes` bounds the KV of a sequence if `max_length`
    is None.

    `instructions` replaces this machine's instruction sets in the choice of formats, `gpu` replaces torch's GPU for
    `device`. `fallback` is the reason not to use kernels for a GPU.
    """

    block_size: int
    kv_cache_bytes: int | None
    dtype: str
    kv_dtype: str = "auto"
    device: str = "cpu"
    threads: int | None = None
    max_length: int | None
    memory: Memory | None = None
    chunk_tokens: int = 512
    max_batch: int | None = capacity.FEWEST
    adapter_values: int = 0
    longest_bytes: int | None = None
    instructions: Processor | None = None
    gpu: Device | None = None
    fallback: str = ""
    on_kernel_failure: str = "Auto"


@dataclass(frozen=True, slots=True)
class RunnerPlan:
    """The formats and sizes of a runner, and its GPU, if it has one."""

    checkpoint: Checkpoint
    formats: Formats
    layout: KVLayout
    sizes: ChosenSizes
    gpu: Device | None = None


def plan(checkpoint: Checkpoint, options: RunnerOptions) -> RunnerPlan:
    """Decides without reading a weight. Raises NoDevice, UnusableFormat and TooLittleMemory."""
    config, gpu = checkpoint.config, options.gpu or backends.gpu(options.device)
    here = options.instructions or processor.detect()
    chosen = formats.choose(options.dtype, here, gpu, config, options.block_size, options.fallback, options.kv_dtype)
    chosen = formats.allowed(chosen, checkpoint, options.on_kernel_failure)
    layout = KVLayout(config.layers, config.kv_heads, options.block_size, config.head_dim, chosen.kv)
    needs = partial(sizing.needs, checkpoint, chosen, options.chunk_tokens, adapter_values=options.adapter_values)
    asked = AskedSizes(options.kv_cache_bytes, options.max_length, options.max_batch)
    declared = config.max_length
    if options.longest_bytes is not None:
        declared = sizing.longest_within(declared, layout, options.longest_bytes)
    sizes = sizing.choose(needs, layout, declared, asked, options.memory)
    return RunnerPlan(checkpoint, chosen, layout, sizes, gpu)
