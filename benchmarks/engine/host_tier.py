#!/usr/bin/env python3
"""Measures the time to the first token with KV for a part of the working set: without slower tiers, with KV in host
memory, and with KV in files.

    python benchmarks/engine/host_tier.py --threads 2 --files FOLDER

Prompts are questions about one of several documents of random tokens, in a random order, one at a time. The KV cache
holds `--share` of all documents; hostKVMemory holds them all, or `--slots` of them where `--files` hold all. Rounds
alternate on one runner, each with empty tiers; the first pass over the documents is not measured. Answers are greedy,
and must be equal. Files are read from the system's page cache, if they fit into it.
"""

import argparse
import random
import select
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from legato_cli.models import model
from legato_engine.core.disk.block_folder import BlockFolder
from legato_engine.core.disk.disk_thread import DiskThread
from legato_engine.kvcache.block_pool import BlockPool, TierSizes
from legato_engine.kvcache.events import EventLog
from legato_engine.runner.plan import RunnerOptions, make_plan
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request, RequestState
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

QUESTION, ANSWER = 32, 4  # tokens
BLOCK_SIZES = {"cpu": 16, "cuda": 64}


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self._chunk = 2048 if args.device == "cuda" else 256
        self._block = BLOCK_SIZES[args.device]
        options = RunnerOptions(
            block_size=self._block, kv_cache_bytes=1 << 30, dtype=args.dtype, threads=args.threads, device=args.device,
            max_length=args.tokens + QUESTION + ANSWER, chunk_tokens=self._chunk,
        )  # fmt: skip
        checkpoint = open_weights(model.resolve(args.model, print))
        layout = make_plan(checkpoint, options).layout
        whole = args.documents * layout.bytes_for(args.tokens + QUESTION + ANSWER, self._chunk)
        self.runner = Runner.load(
            checkpoint, replace(options, kv_cache_bytes=int(args.share * whole), host_kv_bytes=whole)
        )
        self.runner.warm_up()
        self.runner.capture()
        self._length = options.max_length
        self._clock = time.process_time if args.cpu_time else time.perf_counter

    def round(
        self, tiers: TierSizes, prompts: Sequence[Sequence[int]], disk: DiskThread | None = None
    ) -> list[tuple[float, list[int]]]:
        """Seconds to the first token, and the answer, of each prompt in turn."""
        windows = self.runner.layout.windows
        limits = SchedulerLimits(
            "unified", self._block, max_length=self._length, windows=windows, chunk_tokens=self._chunk
        )
        pool = BlockPool(self.runner.num_blocks, EventLog("epoch"), windows, self._block, tiers)
        scheduler = Scheduler(limits, pool, "revision")
        return [self._answer(scheduler, prompt, disk) for prompt in prompts]

    def open_files(self, folder: str) -> DiskThread:
        """The thread that writes and reads the files of a round, in an empty folder."""
        files = BlockFolder.open(Path(folder), self.runner.kv_revision, self.runner.layout.block_bytes)
        return DiskThread(files, self.runner.arena.host.slot)

    def _answer(self, scheduler: Scheduler, prompt: Sequence[int], disk: DiskThread | None) -> tuple[float, list[int]]:
        params = SamplingParams(max_tokens=ANSWER, seed=1, temperature=0.0)
        request = Request("r", 1, list(prompt), len(prompt), params, 1e9)
        began, first = self._clock(), 0.0
        scheduler.add(request, began)
        while request.state is not RequestState.ENDED:
            batch = scheduler.schedule(self._clock())
            if disk is not None:
                disk.submit(scheduler.pool.disk.take_orders(), None)
            if batch is not None:
                scheduler.process(batch, self.runner.step(batch), self._clock())
            elif disk is not None:
                select.select([disk], [], [])  # it waits for files
            for outcome in disk.take() if disk is not None else ():
                scheduler.on_disk_done(outcome)
            scheduler.pool.take_events()
            first = first or (self._clock() - began if request.outputs else 0.0)
        return first, request.tokens[len(prompt) :]


def _figures(seconds: Sequence[float]) -> tuple[float, float]:
    """Mean and median, in ms."""
    return statistics.mean(seconds) * 1e3, statistics.median(seconds) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct", help="as `legato worker --model`")
    parser.add_argument("--dtype", default="Auto")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--documents", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of a document (default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.6, help="of the documents in the KV cache")
    parser.add_argument("--files", metavar="FOLDER", help="also measure KV in files of this folder")
    parser.add_argument("--slots", type=float, default=0.1, help="of the documents in host memory, with files")
    parser.add_argument("--requests", type=int, default=40, help="measured in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="with --threads 1: measure CPU seconds")
    args = parser.parse_args()
    bench, source = Bench(args), random.Random(1)
    print(bench.runner.formats)

    def text(length: int) -> list[int]:
        return [source.randrange(1000, 40000) for _ in range(length)]

    documents = [text(args.tokens) for _ in range(args.documents)]
    order = [*documents, *source.choices(documents, k=args.requests)]
    prompts = [[*document, *text(QUESTION)] for document in order]
    slots = bench.runner.arena.host.count
    print("| round | tiers | mean TTFT | p50 | without ÷ with: mean | p50 |\n| --- | --- | --- | --- | --- | --- |")
    for number in range(args.rounds):
        rounds = {"none": bench.round(TierSizes(), prompts), "host": bench.round(TierSizes(slots), prompts)}
        if args.files:
            with tempfile.TemporaryDirectory(dir=args.files) as folder:
                few = int(slots * args.slots)
                rounds["files"] = bench.round(TierSizes(few, slots), prompts, bench.open_files(folder))
        assert len({tuple(tuple(answer) for _, answer in each) for each in rounds.values()}) == 1, "the answers differ"
        rows = {name: _figures([seconds for seconds, _ in each[len(documents) :]]) for name, each in rounds.items()}
        for name, (mean, half) in rows.items():
            ratios = f"{rows['none'][0] / mean:.1f} | {rows['none'][1] / half:.2f}"
            print(f"| {number + 1} | {name} | {mean:.0f} ms | {half:.0f} ms | {ratios} |", flush=True)
    moved = bench.runner.arena.host.take_times()
    for kind in sorted({each.kind.__name__ for each in moved}):
        of_kind = [each for each in moved if each.kind.__name__ == kind]
        size, seconds = sum(each.blocks for each in of_kind), sum(each.seconds for each in of_kind)
        rate = size * bench.runner.layout.block_bytes / seconds / 1e9
        print(f"{kind}: {size} blocks in {seconds:.2f} s, {rate:.1f} GB/s")


if __name__ == "__main__":
    main()
