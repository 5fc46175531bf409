"""Hand-offs straight from and to a GPU's memory: whether a worker's arena can be used so. See `transfer.gpudirect`."""

from legato_engine.runner.interface import StepRunner
from legato_engine.transfer import gpudirect
from legato_engine.transfer.cuda import CudaDirect, CudaSums, allocator, segments


def of_worker(runner: StepRunner, sums: CudaSums | None) -> CudaDirect:
    """Raises LinkError where the GPU, or the way in which its memory was allocated, does not allow it."""
    arena = runner.arena.blocks
    flush = gpudirect.flush_of(arena.device.index or 0)
    gpudirect.check_plain(runner.arena.address, segments(arena.device), allocator())
    return CudaDirect(arena.device, sums, flush)
