"""Compiles a worker's kernels in several processes: for a GPU while weights are read, for a CPU before the first step.

A worker whose kernels are all in the cache starts no process.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol, Self

import torch

from legato_engine import compilers
from legato_engine.compilers import CompileProcesses
from legato_engine.kernels.cpu.missing import compile_missing
from legato_engine.kernels.gpu.chips import CHIPS, Chip
from legato_engine.settings import WorkerSettings
from legato_engine.weights.checkpoint import Checkpoint

_ABOUT = 60  # kernels of a worker on a GPU


class Compilation(Protocol):
    """Begins with `with`, and ends all processes after it."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def warm_up(self, work: Callable[[], None], beat: Callable[[], None]) -> None:
        """Calls `work`, which launches every kernel, once all are compiled. Calls `beat` while it waits."""
        ...


class OnCpu:
    """Implements `Compilation` by numba; for kernels of torch, nothing is compiled."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing."""

    def warm_up(self, work: Callable[[], None], beat: Callable[[], None]) -> None:
        compile_missing(work, beat)


class OnGpu:
    """Implements `Compilation` by Triton, for a chip with these resources. The settings opened `checkpoint`."""

    def __init__(self, settings: WorkerSettings, checkpoint: Checkpoint, chip: str, limits: Chip) -> None:
        from legato_engine.kernels.gpu import prepared  # imports triton, which takes a second
        from legato_engine.runner import kernel_check

        prepared.install()
        formats = settings.dtype, settings.kv_cache_dtype
        self._stack = ExitStack()
        self._complete = kernel_check.complete(checkpoint, *formats, settings.tokens_per_block, chip)
        given = checkpoint.path, settings.quantization, *formats, settings.tokens_per_block, chip, *limits
        self._arguments = [str(each) for each in given]
        self._processes: CompileProcesses | None = None

    def __enter__(self) -> Self:
        if not self._complete.marked and (count := compilers.processes(_ABOUT)):
            variables = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
            processes = CompileProcesses("legato_engine.runner.kernel_check", self._arguments, count, variables)
            self._processes = self._stack.enter_context(processes)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def warm_up(self, work: Callable[[], None], beat: Callable[[], None]) -> None:
        if self._processes is not None:
            self._processes.finish(beat)
        work()
        self._complete.mark()


def begin(settings: WorkerSettings, checkpoint: Checkpoint, fallback: str) -> Compilation:
    """`fallback` is the reason not to use kernels for a GPU, or empty."""
    if settings.device == "cpu" or fallback or not torch.cuda.is_available():  # `Runner.load` refuses a missing GPU
        return OnCpu()
    gpu = torch.cuda.get_device_properties(torch.device(settings.device))
    chip = f"sm_{gpu.major}{gpu.minor}"
    shared = getattr(gpu, "shared_memory_per_block_optin", CHIPS["sm_80"].shared)
    return OnGpu(settings, checkpoint, chip, Chip(shared, gpu.multi_processor_count))
