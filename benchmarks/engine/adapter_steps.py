"""Measures the cost of adapters in a step: time of steps of a few shapes with the model alone and with rows of one to
four adapters.

Shapes are taken in turn, and the shortest of many times counts, so that others on the machine count little:

    python benchmarks/engine/adapter_steps.py [--rank 16]
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from legato_cli.models.model import PREFIX, resolve
from legato_engine.layers.low_rank import LowRankAdapter, Pair
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, Draw, Row
from legato_engine.weights.expected import projections
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

SHAPES = {"decode 1": (1, 1), "decode 4": (4, 1), "decode 16": (16, 1), "prompts 4 × 128": (4, 128)}
CONTEXT = 128  # tokens before each row
GREEDY = SamplingParams(max_tokens=64, seed=0, temperature=0.0)


def load(path: Path) -> Runner:
    runner = Runner.load(
        open_weights(path), RunnerOptions(block_size=16, kv_cache_bytes=256 << 20, dtype="auto", max_length=1024)
    )
    runner.warm_up()
    return runner


def random_adapter(runner: Runner, path: Path, rank: int, seed: int) -> LowRankAdapter[Any]:
    draw = torch.Generator().manual_seed(seed)
    return runner.adapter(
        {
            name: Pair(
                torch.randn(rank, inputs, generator=draw) * 0.01, torch.randn(outputs, rank, generator=draw) * 0.01
            )
            for name, (outputs, inputs) in projections(open_weights(path).config).items()
        }
    )


def batch(rows: int, tokens: int, adapters: list[LowRankAdapter[Any]]) -> Batch:
    """Rows take the adapters in turn."""
    made = []
    for index in range(rows):
        blocks = list(range(1 + index * 20, 21 + index * 20))
        end, known = CONTEXT + tokens, [7] * (CONTEXT + tokens)
        draws = (Draw(0, end, GREEDY, known, end),)
        adapter = adapters[index % len(adapters)] if adapters else None
        made.append(Row(known[:tokens], CONTEXT, blocks, draws, adapter=adapter))
    return Batch(tuple(made))


def shortest(runner: Runner, batches: list[Batch], rounds: int) -> list[float]:
    """Seconds of each."""
    best = [float("inf")] * len(batches)
    for _ in range(rounds):
        for index, each in enumerate(batches):
            began = time.perf_counter()
            runner.step(each)
            best[index] = min(best[index], time.perf_counter() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=60)
    flags = parser.parse_args()
    path = resolve(f"{PREFIX}smollm2-135m-instruct", print)
    runner = load(path)
    adapters = [random_adapter(runner, path, flags.rank, seed) for seed in range(4)]
    print(f"{runner.formats}; rank {flags.rank}, all projections, {adapters[0].nbytes >> 10} KiB each")
    print("| step | model alone | 1 adapter | 2 | 4 |\n| --- | --- | --- | --- | --- |")
    for name, (rows, tokens) in SHAPES.items():
        counts = [count for count in (0, 1, 2, 4) if count <= rows]
        times = shortest(runner, [batch(rows, tokens, adapters[:count]) for count in counts], flags.rounds)
        cells = [f"{times[0] * 1e3:.1f} ms", *(f"× {seconds / times[0]:.2f}" for seconds in times[1:])]
        print("|", " | ".join([name, *cells, *[""] * (4 - len(cells))]), "|")


if __name__ == "__main__":
    main()
