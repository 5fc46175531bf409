"""CPU time of the scheduler in a decoding step, without a model: `schedule` and `process`, at several batch sizes; the
same where each step is scheduled before the one before it is processed; and the longest step while they start.

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
SIZES = (1, 8, 64, 256, 1024)


def decoding(batch_size: int) -> Scheduler:
    """Returns a scheduler with this number of waiting sequences."""
    limits = SchedulerLimits(
        "unified", BLOCK_SIZE, max_length=4096, chunk_tokens=1 << 17, max_running=batch_size, max_waiting=batch_size
    )
    blocks = batch_size * limits.blocks_for(PROMPT + STEPS + 64) + 64
    scheduler = Scheduler(limits, BlockPool(blocks, EventLog("epoch")), "revision")
    params = SamplingParams(max_tokens=STEPS + 60, seed=1)
    for number in range(batch_size):
        prompt = [number, *range(PROMPT - 1)]
        scheduler.add(Request(str(number), 1, prompt, PROMPT, params, 1e9), 0.0)
    return scheduler


def step_seconds(batch_size: int, ahead: bool) -> tuple[float, float]:
    """The median step of `batch_size` sequences that all decode, and the longest one of those in which they start."""
    scheduler, times = decoding(batch_size), []
    batch = None
    for step in range(STEPS):
        begin = time.thread_time()
        batch = batch or scheduler.schedule(float(step))
        following = scheduler.schedule_ahead(float(step)) if ahead else None
        scheduled = time.thread_time()
        assert batch is not None
        output = tuple((Sampled(step % 1000),) * len(row.draws) for row in batch.rows)
        computed = time.thread_time()
        scheduler.process(batch, output, step + 0.5)
        times.append(time.thread_time() - computed + scheduled - begin)
        scheduler.pool.events.take()
        batch = following
    return median(times[STEPS // 10 :]), max(times[: STEPS // 10])


def main() -> None:
    for size in SIZES:
        (usual, start), (ahead, _) = step_seconds(size, ahead=False), step_seconds(size, ahead=True)
        figures = [f"{seconds * 1e6:6.0f} µs" for seconds in (usual, ahead, start)]
        print("batch {:4}: a step {}, ahead {}, a start {}".format(size, *figures))


if __name__ == "__main__":
    main()
