"""Whether Triton compiles the kernels of a model for the GPUs of this machine, for `legato doctor`."""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from legato_cli.gpus import Gpu, reason

LIMIT = 600.0  # seconds, for all kernels of a model on a kind of GPU; a cold check takes some 20


def problems(
    gpus: Iterable[Gpu], model: Path, dtype: str, block_size: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """For each kind of GPU, the first kernel that does not compile and why, or "". Nothing is started on any GPU, and
    Triton keeps what it compiled: the next time costs little."""
    kinds = {gpu.chip: gpu for gpu in gpus}
    return {chip: _problem(gpu, model, dtype, block_size, environ) for chip, gpu in kinds.items()}


def told(of: str, problems: Mapping[str, str]) -> str:
    """One line about the kernels of the model `of`."""
    if failing := [f"{chip}: {problem}" for chip, problem in problems.items() if problem]:
        return f"{'kernels':<14} not all of {of} compile for {'; '.join(failing)}"
    return f"{'kernels':<14} all of {of} compile for {', '.join(problems)}"


def _problem(gpu: Gpu, model: Path, dtype: str, block_size: int, environ: Mapping[str, str]) -> str:
    """Tried in a process of its own: a compiler may end it."""
    from legato_engine.backends.cuda.device import LEAST_CAPABILITY

    if gpu.capability < LEAST_CAPABILITY:
        return "kernels need compute capability {}.{} or higher".format(*LEAST_CAPABILITY)
    command = [sys.executable, "-m", "legato_engine.runner.kernel_check", model, dtype, block_size, gpu.chip]
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
