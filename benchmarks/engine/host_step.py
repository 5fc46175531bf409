"""CPU time of the host's parts of a decoding step of many sequences, without a model: planning, inputs, samples by row,
output, and frames for two gateways.

python benchmarks/engine/host_step.py [SEQUENCES]
"""

import gc
import sys
import time
from collections import defaultdict
from statistics import quantiles

from legato_engine.core.frames import IterationReport, encode
from legato_engine.core.reporting.outbox import Outbox, key_of
from legato_engine.core.reporting.phases import PhaseLog
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.runner import inputs
from legato_engine.runner.runner import _by_row, _draws
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_protocol.sampling.parameters import SamplingParams

BLOCK_SIZE, PROMPT, STEPS, FIRST = 64, 64, 300, 30


def scheduler_of(sequences: int) -> Scheduler:
    """A scheduler with this number of waiting sequences."""
    limits = SchedulerLimits(
        "unified", BLOCK_SIZE, max_length=4096, chunk_tokens=1 << 17, max_running=sequences, max_waiting=sequences
    )
    blocks = sequences * limits.blocks_for(PROMPT + STEPS + 64) + 64
    scheduler = Scheduler(limits, BlockPool(blocks, EventLog("epoch")), "revision")
    for number in range(sequences):
        params = SamplingParams(max_tokens=STEPS + 60, seed=number)
        key, prompt = key_of(number % 2, f"chatcmpl-{number:032}"), [number, *range(PROMPT - 1)]
        scheduler.add(Request(key, 1, prompt, PROMPT, params, 1e9), 0.0)
    return scheduler


def main(sequences: int) -> None:
    scheduler, outbox = scheduler_of(sequences), Outbox(PhaseLog(time.monotonic))
    times: defaultdict[str, list[float]] = defaultdict(list)
    gc.freeze()
    gc.set_threshold(50_000)  # as in a core
    for step in range(STEPS):
        began = time.thread_time()

        def lap(part: str) -> None:
            nonlocal began
            now = time.thread_time()
            times[part].append(now - began)
            began = time.thread_time()

        batch = scheduler.schedule(float(step))
        assert batch is not None
        lap("plan")
        draws, _ = _draws(batch.rows)
        inputs.build(batch.rows, BLOCK_SIZE)
        lap("inputs")
        output = _by_row(batch.rows, [Sampled(number % 1000) for number in range(len(draws))], {})
        lap("samples")
        result = scheduler.process(batch, output, step + 0.5)
        lap("process")
        outbox.emit(result.emissions)
        lap("emit")
        encode(IterationReport(outbox.take()[0]))
        lap("frames")
        scheduler.pool.events.take()
    tenth = {part: quantiles(each[FIRST:], n=10)[0] * 1e3 for part, each in times.items()}  # of the times, undisturbed
    print(f"{sequences} sequences: {sum(tenth.values()):.2f} ms;", *[f"{part} {ms:.2f}" for part, ms in tenth.items()])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
