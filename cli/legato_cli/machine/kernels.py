"""Checks that Triton compiles a model's kernels for the GPUs of this machine, for `legato doctor`."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from legato_cli.machine.gpus import Gpu, reason

LIMIT = 600.0  # seconds, for all kernels of a model on a kind of GPU; a cold check takes some 20


def problems(
    gpus: Iterable[Gpu], model: Path, formats: tuple[str, str, str], block_size: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Returns, by kind of GPU, the first kernel that does not compile with the reason, or "". `formats` are settings:
    the quantization, the type of weights and of KV.

    Uses no GPU. Triton caches compiled kernels, so that a second check is quick. Kinds are checked concurrently, each
    in a process.
    """
    kinds = {gpu.chip: gpu for gpu in gpus}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        checked = pool.map(lambda gpu: _problem(gpu, model, formats, block_size, environ), kinds.values())
        return dict(zip(kinds, checked, strict=True))


def describe(model: str, problems: Mapping[str, str]) -> str:
    """Returns a line about the kernels of a model."""
    if failing := [f"{chip}: {problem}" for chip, problem in problems.items() if problem]:
        return f"{'kernels':<14} not all of {model} compile for {'; '.join(failing)}"
    return f"{'kernels':<14} all of {model} compile for {', '.join(problems)}"


def _problem(gpu: Gpu, model: Path, formats: tuple[str, str, str], block_size: int, environ: Mapping[str, str]) -> str:
    """Compiles in a separate process, because a compiler may end it."""
    from legato_engine.backends.cuda.device import LEAST_CAPABILITY

    if gpu.capability < LEAST_CAPABILITY:
        return "kernels need compute capability {}.{} or higher".format(*LEAST_CAPABILITY)
    command = [sys.executable, "-m", "legato_engine.runner.kernel_check", model, *formats, block_size, gpu.chip]
    command += [gpu.shared, gpu.processors]
    environment = {**environ, "TRITON_INTERPRET": "0"}
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"the compiler did not end within {LIMIT:g} s"
    if not done.returncode:
        return ""
    kernel, why = done.stdout.strip(), reason(done.stderr)
    return f"{kernel}: {why}" if kernel else why
