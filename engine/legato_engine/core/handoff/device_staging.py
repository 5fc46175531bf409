"""Opens staging slots in host memory, for hand-offs of an arena in GPU memory. See `transfer.device.staging`."""

from legato_engine import memory
from legato_engine.runner.interface import StepRunner
from legato_engine.settings import WorkerSettings
from legato_engine.transfer.device.cuda import CudaCopies, CudaSums
from legato_engine.transfer.device.interface import BlockCopies
from legato_engine.transfer.device.rank_copies import RankCopies
from legato_engine.transfer.device.staging import Staging, slot_counts


def open_staging(settings: WorkerSettings, runner: StepRunner, max_length: int, sums: CudaSums | None) -> Staging:
    """Allocates and pins as many slots as the available memory allows. Raises TooLittleMemory."""
    layout, free = runner.layout, memory.available() // (settings.memory_share or 1)
    longest, many = layout.sizes(0).most(max_length), settings.role != "prefill"
    landing, ring = slot_counts(layout.block_bytes, longest, runner.num_blocks, free, many)
    copies: BlockCopies
    if runner.arena.parts:
        copies = RankCopies(runner.arena.parts, runner.num_blocks, landing + ring, sums)
    else:
        copies = CudaCopies(runner.arena.blocks, runner.num_blocks, landing + ring, sums)
    return Staging.over(copies, landing, ring)
