"""Slots in the host's memory for hand-offs of a worker whose arena only a GPU reaches: how many, and what copies and
sums up its blocks. See `transfer.staging`.
"""

from functools import partial

from legato_engine import memory
from legato_engine.backends.cuda.compiling import compiling
from legato_engine.kernels.block_sums import naive, triton
from legato_engine.kernels.configurations import chip_of, choose
from legato_engine.runner.interface import StepRunner
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.cuda import CudaCopies, SumBlocks
from legato_engine.transfer.staging import Staging, slot_counts


def of_worker(settings: WorkerSettings, runner: StepRunner, max_length: int) -> Staging:
    """Takes and pins the memory. Raises TooLittleMemory, KernelFailed."""
    layout, free = runner.layout, memory.available() // settings.memory_share
    longest, many = layout.blocks_for(max_length), settings.role != "prefill"
    landing, ring = slot_counts(layout.block_bytes, longest, runner.num_blocks, free, many)
    arena = runner.arena.blocks
    chip = chip_of(arena.device) if arena.device.type == "cuda" else "interpreter"
    sum_blocks = _sum_blocks(chip, runner.fallback) if settings.checksum else None
    with compiling(chip):
        copies = CudaCopies(arena, runner.num_blocks, landing + ring, sum_blocks)
    return Staging.over(copies, landing, ring)


def _sum_blocks(chip: str, fallback: str) -> SumBlocks:
    """Both make the same sums. Where steps have no kernels, as `fallback` says, hand-offs have none either."""
    if fallback:
        return naive.sum_blocks
    return partial(triton.sum_blocks, config=choose("sum_blocks", {}, chip))
