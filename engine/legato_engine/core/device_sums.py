"""What makes the checksums of blocks that only a GPU reaches: a kernel, or torch's own operators."""

from dataclasses import dataclass
from functools import partial

from legato_engine.backends.cuda.compiling import compiling
from legato_engine.errors import KernelFailed
from legato_engine.kernels.block_sums import naive, triton
from legato_engine.kernels.configurations import chip_of, choose
from legato_engine.runner.interface import StepRunner
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.cuda import CudaSums


@dataclass(frozen=True, slots=True)
class DeviceSums:
    """`sums` is None where checksums are off; `fallback` says why the kernel is not used, or nothing."""

    sums: CudaSums | None
    fallback: str = ""


def of_worker(settings: WorkerSettings, runner: StepRunner) -> DeviceSums:
    """Both ways make the same sums. Where steps have no kernels, hand-offs have none either. Raises KernelFailed,
    unless torch's operators are to take over."""
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
