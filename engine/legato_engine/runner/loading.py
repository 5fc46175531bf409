"""A runner that computes, from a worker's settings: opens the weights, loads them, makes a token."""

from collections.abc import Callable
from pathlib import Path

import torch

from legato_engine import memory
from legato_engine.adapters.folder import AdapterFolder, open_adapter
from legato_engine.adapters.resident import OfferedAdapter
from legato_engine.runner import population
from legato_engine.runner.interface import LoadedModel, Progress
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Adapter
from legato_engine.settings import WorkerSettings
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import projections
from legato_engine.weights.opening import open_weights
from legato_protocol.flags import SettingsError


def load(settings: WorkerSettings, path: Path, progress: Progress) -> LoadedModel:
    """The model at `path`, which has made a token. Raises EngineError, SettingsError."""
    checkpoint = open_weights(path)
    folders = _adapters(settings, checkpoint)
    max_length = settings.length_limit(checkpoint.config.max_length)
    if settings.device != "cpu" and settings.transport != "None":
        raise SettingsError(
            f"--device: {settings.device} computes, but cannot hand KV off yet: hand-off reads the host's memory (use "
            "--transport None and a unified worker, or --device cpu)"
        )
    largest = max((folder.values for folder in folders.values()), default=0)
    resident = min(settings.adapters_in_memory, len(folders))
    runner = _runner(settings, checkpoint, max_length, resident * largest, progress)
    for folder in [*folders.values()][:1]:
        runner.warm_up_adapter(runner.adapter(folder.read()))
    offered = [OfferedAdapter(name, folder.digest, _load(runner, folder)) for name, folder in folders.items()]
    return LoadedModel(runner, checkpoint.fingerprint, checkpoint.config.vocab_size, max_length, tuple(offered))


def _adapters(settings: WorkerSettings, checkpoint: Checkpoint) -> dict[str, AdapterFolder]:
    """All adapters, by name, each of which fits. Raises ModelError."""
    fitting = projections(checkpoint.config)
    most = settings.max_adapter_rank
    return {name: open_adapter(Path(folder), fitting, most) for name, folder in settings.adapters}


def _load(runner: Runner, folder: AdapterFolder) -> Callable[[], Adapter]:
    return lambda: runner.adapter(folder.read())


def _runner(
    settings: WorkerSettings, checkpoint: Checkpoint, max_length: int, adapter_values: int, progress: Progress
) -> Runner:
    """The model, which has made a token."""
    runner = Runner.load(
        checkpoint,
        block_size=settings.block_size,
        kv_cache_bytes=settings.kv_cache_memory,
        dtype=settings.dtype,
        kv_dtype=settings.kv_cache_dtype,
        device=settings.device,
        threads=settings.threads,
        max_length=max_length,
        available=_available(settings),
        chunk_tokens=settings.chunk_tokens,
        max_batch=settings.max_batch,
        adapter_values=adapter_values,
        progress=lambda _what, share: progress("loading", share),
    )
    if settings.device == "cpu":
        population.start(runner.arena)  # not before: workers that start together first find out what is free
    progress("warming up", 0.0)
    runner.warm_up()
    memory.give_back()
    return runner


def _available(settings: WorkerSettings) -> int:
    """Bytes that this worker may take: with Auto its share of what is free, else all of that."""
    free = memory.available()
    if settings.device == "cuda" and torch.cuda.is_available():  # `Runner.load` refuses one that is not there
        free = torch.cuda.mem_get_info()[0]
    return free // settings.memory_share if settings.kv_cache_memory is None else free
