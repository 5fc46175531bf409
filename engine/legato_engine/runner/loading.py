"""Makes a runner from a worker's settings: opens the weights, loads them, computes a token."""

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from legato_engine import memory
from legato_engine.adapters.folder import AdapterFolder, Projections, open_adapter
from legato_engine.adapters.resident import OfferedAdapter
from legato_engine.errors import KernelFailed
from legato_engine.layers.low_rank import Pair
from legato_engine.runner import backends, compilation, population, sizing
from legato_engine.runner.drafting.draft_model import DraftModel
from legato_engine.runner.drafting.opening import open_draft
from legato_engine.runner.drafting.speculating_runner import SpeculatingRunner
from legato_engine.runner.interface import LoadedModel, Progress
from legato_engine.runner.plan import AdapterLimits, RunnerOptions, draft_options, plan_draft
from legato_engine.runner.runner import Runner
from legato_engine.runner.sizing import Memory
from legato_engine.runner.step_profiler import TorchProfiler, open_ranges
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.device import staging
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import projections
from legato_engine.weights.opening import open_weights
from legato_protocol.model_files.adapter_list import AdapterEntry


def load(settings: WorkerSettings, path: Path, progress: Progress, draft_path: Path | None = None) -> LoadedModel:
    """The model at `path`, after it has computed a token, and its draft model. Raises EngineError."""
    checkpoint = open_weights(path, settings.quantization)
    draft = None if draft_path is None else open_draft(draft_path, checkpoint)
    fitting = projections(checkpoint.config)
    folders = _adapters(settings, fitting)
    max_length = settings.length_limit(checkpoint.config.max_length)
    limits = _adapter_limits(settings, fitting, folders)
    runner, drafting = _runners(settings, _Parts(checkpoint, draft, max_length, limits), progress)
    for folder in [*folders.values()][:1]:
        runner.warm_up_adapter(runner.adapter(folder.read()))
    if settings.adapters_file is not None:
        runner.warm_up_adapter(runner.adapter(_neutral(fitting)))
    runner.capture()
    offered = [_offered(runner, name, folder) for name, folder in folders.items()]

    def open_listed(entry: AdapterEntry) -> OfferedAdapter:
        return _offered(runner, entry.name, _open(settings, fitting, entry))

    return LoadedModel(
        runner if drafting is None else SpeculatingRunner(runner, drafting),
        checkpoint.fingerprint,
        checkpoint.config.vocab_size,
        runner.max_length,
        runner.max_running,
        tuple(offered),
        backends.gpu_uuids(settings.device, settings.tensor),
        TorchProfiler(runner.ranges, gpu=settings.device != "cpu"),
        open_listed,
        draft=None if drafting is None else drafting.limits,
        between_layers=runner.between_layers,
    )


def _adapters(settings: WorkerSettings, fitting: Projections) -> dict[str, AdapterFolder]:
    """All adapters named by flags. Raises ModelError if one does not fit the model."""
    return {name: _open(settings, fitting, AdapterEntry(name, folder)) for name, folder in settings.adapters}


def _open(settings: WorkerSettings, fitting: Projections, entry: AdapterEntry) -> AdapterFolder:
    return open_adapter(Path(entry.path), fitting, settings.max_adapter_rank, entry.max_rank)


def _offered(runner: Runner, name: str, folder: AdapterFolder) -> OfferedAdapter:
    return OfferedAdapter(name, folder.digest, lambda: runner.adapter(folder.read()))


def _adapter_limits(
    settings: WorkerSettings, fitting: Projections, folders: Mapping[str, AdapterFolder]
) -> AdapterLimits:
    """The limits of adapters: of the largest ones, including those that may come."""
    most, rank = settings.adapters_in_memory, settings.max_adapter_rank
    if settings.adapters_file is not None:
        return AdapterLimits(most, rank, most * rank * sum(map(sum, fitting.values())))
    largest = max((folder.values for folder in folders.values()), default=0)
    return AdapterLimits(most, rank, min(most, len(folders)) * largest)


def _neutral(fitting: Projections) -> dict[str, Pair]:
    """An adapter of rank 1 that changes nothing, for a worker that may start without adapters."""
    return {name: Pair(torch.zeros(1, inputs), torch.zeros(outputs, 1)) for name, (outputs, inputs) in fitting.items()}


class _Parts(NamedTuple):
    """The weights that are loaded, and limits that follow from them."""

    checkpoint: Checkpoint
    draft: Checkpoint | None
    max_length: int | None
    adapters: AdapterLimits


def _runners(settings: WorkerSettings, parts: _Parts, progress: Progress) -> tuple[Runner, DraftModel | None]:
    """The model and its draft model, after each has computed a token."""
    try:
        return _warmed_up(settings, parts, progress)
    except KernelFailed as error:
        if settings.on_kernel_failure != "Torch":
            raise
        why = str(error)
    # Only after the exception, whose frames hold the first runner, is freed: the device may have no room for two.
    gc.collect()  # a compiler's errors may hold each other
    torch.cuda.empty_cache()  # otherwise torch keeps the freed memory, and it does not count as free
    return _warmed_up(settings, parts, progress, why)


def _warmed_up(
    settings: WorkerSettings, parts: _Parts, progress: Progress, fallback: str = ""
) -> tuple[Runner, DraftModel | None]:
    options, drafting = _options(settings, parts, fallback), None
    if parts.draft is not None:
        options = replace(options, draft=plan_draft(parts.draft, options))
    with compilation.begin(settings, parts.checkpoint, fallback) as kernels:
        runner = _loaded(parts.checkpoint, options, lambda _what, share: progress("loading", share))
        if parts.draft is not None:
            own = draft_options(options, runner.num_blocks, runner.max_length, runner.max_running)
            small = _loaded(parts.draft, own, lambda _what, share: progress("loading the draft model", share))
            drafting = DraftModel(small, parts.checkpoint.config.vocab_size, parts.draft.config.vocab_size)
        progress("warming up", 0.0)
        runners = [runner] if drafting is None else [runner, drafting.runner]
        kernels.warm_up(lambda: _compute_tokens(runners), lambda: progress("compiling kernels", 0.0))
    if drafting is not None:
        drafting.runner.capture()
    memory.give_back()
    return runner, drafting


def _compute_tokens(runners: Sequence[Runner]) -> None:
    for runner in runners:
        runner.warm_up()


def _loaded(checkpoint: Checkpoint, options: RunnerOptions, progress: Progress) -> Runner:
    runner = Runner.load(checkpoint, options, progress)
    if options.device == "cpu":
        # Only now: workers that start together measure the free memory first.
        population.start(runner.arena, runner.arena.host)
    checkpoint.release()
    return runner


def _options(settings: WorkerSettings, parts: _Parts, fallback: str) -> RunnerOptions:
    return RunnerOptions(
        block_size=settings.tokens_per_block,
        kv_cache_bytes=settings.kv_cache_memory,
        host_kv_bytes=settings.host_kv_memory,
        dtype=settings.dtype,
        kv_dtype=settings.kv_cache_dtype,
        device=settings.device,
        threads=settings.threads or _threads(settings.tensor),
        max_length=parts.max_length,
        memory=_memory(settings),
        chunk_tokens=settings.tokens_per_chunk,
        max_batch=settings.max_batch,
        adapters=parts.adapters,
        drafts=settings.most_drafts,
        longest_bytes=_longest_bytes(settings),
        fallback=fallback,
        on_kernel_failure=settings.on_kernel_failure,
        ranges=open_ranges(settings.nvtx),
        shared=settings.shares_memory,
        tensor=settings.tensor,
        quantization=settings.quantization,
    )


def _threads(ranks: int) -> int | None:
    """Threads of each of several ranks, which share the cores; None: all cores for one."""
    return None if ranks == 1 else max(1, len(os.sched_getaffinity(0)) // ranks)


def _longest_bytes(settings: WorkerSettings) -> int | None:
    """Maximum bytes of KV of a sequence with Auto; None: not bounded.

    A hand-off from a GPU has to fit into the host's memory, unless peers can reach the device's memory, which is not
    known yet."""
    if settings.device == "cpu" or settings.transport == "None":
        return None
    return staging.landing_bytes(memory.available() // (settings.memory_share or 1))


def _memory(settings: WorkerSettings) -> Memory:
    """Memory that this worker may take: its share with Auto, otherwise all free memory.

    On GPUs, of which all ranks have one like the first rank's, it is a share of the total memory, at most the free
    memory, so that it does not depend on which worker started first. On the host, where other programs always run, it
    is a share of the free memory, without the part for evicted KV. Raises TooLittleMemory if the host has no room for
    that.
    """
    free, share = memory.available(), None if settings.kv_cache_memory is not None else settings.memory_share
    host = sizing.without_host_kv(Memory(free // (share or 1), share is not None), settings.host_kv_memory)
    if settings.device == "cuda" and torch.cuda.is_available():  # `Runner.load` refuses a missing one
        free, total = torch.cuda.mem_get_info()
        return Memory(min(free, total // (share or 1)) * settings.tensor)
    return host
