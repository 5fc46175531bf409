"""Hand-offs directly from and to a worker's arena in GPU memory. See `transfer.device.gpudirect`."""

from legato_engine.runner.interface import StepRunner
from legato_engine.transfer.device import gpudirect
from legato_engine.transfer.device.cuda import CudaDirect, CudaSums, allocator, segments
from legato_engine.transfer.link import LinkError


def open_direct(runner: StepRunner, sums: CudaSums | None) -> CudaDirect:
    """Checks that GPUDirect works with this arena. Raises LinkError if the GPU or its memory allocator prevents it."""
    if runner.arena.parts:
        raise LinkError("GPUDirect does not reach the parts of blocks that other ranks have")
    arena = runner.arena.blocks
    flush = gpudirect.open_flush(arena.device.index or 0)
    gpudirect.check_plain(runner.arena.address, segments(arena.device), allocator())
    return CudaDirect(arena.device, sums, flush)
