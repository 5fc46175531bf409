"""Checksums of blocks in GPU memory: by a kernel, or by torch's operators if it cannot be compiled."""

from dataclasses import dataclass
from functools import partial

from legato_engine.backends.cuda.compiling import compiling
from legato_engine.errors import KernelFailed
from legato_engine.kernels.gpu import block_sums as triton
from legato_engine.kernels.gpu.configurations import chip_of, choose
from legato_engine.kernels.reference import block_sums as naive
from legato_engine.runner.interface import StepRunner
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.device.cuda import CudaSums


@dataclass(frozen=True, slots=True)
class DeviceSums:
    """The way to compute checksums: `sums` is None if they are off; `fallback` is why the kernel is not used, or ""."""

    sums: CudaSums | None
    fallback: str = ""


def open_sums(settings: WorkerSettings, runner: StepRunner) -> DeviceSums:
    """Compiles the kernel; torch's operators compute the same sums if the runner does without kernels.

    Raises KernelFailed if it cannot be compiled and `on_kernel_failure` does not allow torch.
    """
    if not settings.checksum:
        return DeviceSums(None)
    arena = runner.arena.blocks
    if runner.fallback:
        return DeviceSums(CudaSums(arena, runner.num_blocks, naive.sum_blocks))
    chip = chip_of(arena.device) if arena.device.type == "cuda" else "interpreter"
    kernel = partial(triton.sum_blocks, config=choose("sum_blocks", {}, chip))
    try:
        with compiling(chip):
            return DeviceSums(CudaSums(arena, runner.num_blocks, kernel))
    except KernelFailed as error:
        if settings.on_kernel_failure != "Torch":
            raise
        return DeviceSums(CudaSums(arena, runner.num_blocks, naive.sum_blocks), f"checksums of hand-offs: {error}")
