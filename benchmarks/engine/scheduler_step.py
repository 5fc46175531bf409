"""CPU time of the scheduler in a decoding step, without a model: `schedule` and `process`, at several batch sizes; and
the same where each step is scheduled before the one before it is processed.

python benchmarks/engine/scheduler_step.py
"""

import time
from statistics import median

from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_protocol.sampling.parameters import SamplingParams

BLOCK_SIZE, PROMPT, STEPS = 16, 64, 600
SIZES = (1, 8, 64)


def decoding(batch_size: int) -> Scheduler:
    """Returns a scheduler with this number of waiting sequences."""
    limits = SchedulerLimits("unified", BLOCK_SIZE, max_length=4096, chunk_tokens=1 << 16, max_running=batch_size)
    blocks = batch_size * limits.blocks_for(PROMPT + STEPS + 64) + 64
    scheduler = Scheduler(limits, BlockPool(blocks, EventLog("epoch")), "revision")
    params = SamplingParams(max_tokens=STEPS + 60, seed=1)
    for number in range(batch_size):
        prompt = [number, *range(PROMPT - 1)]
        scheduler.add(Request(str(number), 1, prompt, PROMPT, params, 1e9), 0.0)
    return scheduler


def step_seconds(batch_size: int, ahead: bool) -> float:
    """The median step of `batch_size` sequences that all decode."""
    scheduler, times = decoding(batch_size), []
    batch = None
    for step in range(STEPS):
        begin = time.perf_counter()
        batch = batch or scheduler.schedule(float(step))
        following = scheduler.schedule_ahead(float(step)) if ahead else None
        scheduled = time.perf_counter()
        assert batch is not None
        output = tuple((Sampled(step % 1000),) * len(row.draws) for row in batch.rows)
        computed = time.perf_counter()
        scheduler.process(batch, output, step + 0.5)
        times.append(time.perf_counter() - computed + scheduled - begin)
        scheduler.pool.events.take()
        batch = following
    return median(times[STEPS // 10 :])


def main() -> None:
    for size in SIZES:
        usual, ahead = (step_seconds(size, ahead) * 1e6 for ahead in (False, True))
        print(f"batch {size:3}: {usual:6.0f} µs a step, {ahead:6.0f} µs a step ahead")


if __name__ == "__main__":
    main()
