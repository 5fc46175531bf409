"""Measures the cost of adapters in a step: time of steps of a few shapes by the model without adapters and with rows of
one to eight adapters.

Steps with and without adapters alternate. Ratios are medians over rounds, of steps that follow each other. On a machine
that other programs use, `--processor-time` measures one thread's time on a processor instead:

    python benchmarks/engine/adapter_steps.py [--rank 16] [--model FOLDER] [--processor-time]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from legato_cli.models.model import PREFIX, resolve
from legato_engine.layers.low_rank import LowRankAdapter, Pair
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, Draw, Row
from legato_engine.weights.expected import projections
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

SHAPES = {"decode 1": (1, 1), "decode 8": (8, 1), "decode 32": (32, 1), "prompts 8 × 64": (8, 64)}
COUNTS = 0, 1, 8  # of adapters
CONTEXT = 128  # tokens before each row
GREEDY = SamplingParams(max_tokens=64, seed=0, temperature=0.0)


def load(path: Path, threads: int | None) -> Runner:
    options = RunnerOptions(
        block_size=16, kv_cache_bytes=512 << 20, dtype="auto", max_length=1024, threads=threads
    )  # fmt: skip
    return Runner.load(open_weights(path), options)


def random_adapter(runner: Runner, path: Path, rank: int, seed: int) -> LowRankAdapter:
    draw = torch.Generator().manual_seed(seed)
    return runner.adapter(
        {
            name: Pair(
                torch.randn(rank, inputs, generator=draw) * 0.01, torch.randn(outputs, rank, generator=draw) * 0.01
            )
            for name, (outputs, inputs) in projections(open_weights(path).config).items()
        }
    )


def batch(rows: int, tokens: int, adapters: list[LowRankAdapter]) -> Batch:
    """Rows take the adapters in turn."""
    made = []
    for index in range(rows):
        blocks = list(range(1 + index * 20, 21 + index * 20))
        end, known = CONTEXT + tokens, [7] * (CONTEXT + tokens)
        draws = (Draw(0, end, GREEDY, known, end),)
        adapter = adapters[index % len(adapters)] if adapters else None
        made.append(Row(known[:tokens], CONTEXT, blocks, draws, adapter=adapter))
    return Batch(tuple(made))


def seconds(runner: Runner, batches: list[Batch], rounds: int, clock: Callable[[], float]) -> list[list[float]]:
    """Seconds of each batch, by round."""
    for each in batches:
        runner.step(each)  # compiles
    times: list[list[float]] = []
    for _ in range(rounds):
        times.append([])
        for each in batches:
            began = clock()
            runner.step(each)
            times[-1].append(clock() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--processor-time", action="store_true")
    flags = parser.parse_args()
    path = flags.model or resolve(f"{PREFIX}smollm2-135m-instruct", print)
    runner = load(path, 1 if flags.processor_time else None)
    clock = time.process_time if flags.processor_time else time.perf_counter
    adapters = [random_adapter(runner, path, flags.rank, seed) for seed in range(max(COUNTS))]
    print(f"{runner.formats}; rank {flags.rank}, all projections, {adapters[0].nbytes >> 10} KiB each")
    print("| step | model without adapters | with 1 adapter | with 8 |\n| --- | --- | --- | --- |")
    for name, (rows, tokens) in SHAPES.items():
        counts = [count for count in COUNTS if count <= rows]
        times = seconds(runner, [batch(rows, tokens, adapters[:count]) for count in counts], flags.rounds, clock)
        cells = [f"{median(base for base, *_ in times) * 1e3:.1f} ms"]
        cells += [f"× {median(each[at] / each[0] for each in times):.2f}" for at in range(1, len(counts))]
        print("|", " | ".join([name, *cells, *[""] * (len(COUNTS) - len(cells))]), "|", flush=True)


if __name__ == "__main__":
    main()
