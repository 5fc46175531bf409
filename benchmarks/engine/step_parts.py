#!/usr/bin/env python3
"""Splits the time of a step: attention, linear layers, experts, the output head, other operators, sampling, scheduling,
and the rest, which is Python.

    python benchmarks/engine/step_parts.py --threads 2

A real scheduler schedules, and the runner computes, steps of the built-in model: decoding at several batch sizes and
contexts, and chunks of a prompt at several positions. Every operator of the model is wrapped in a clock, and called by
itself for that. `step` is the same step as workers compute it, where one call may go through many operators. Of several
equal steps the fastest is shown, since other work on the machine only ever adds.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from legato_cli.models import model
from legato_engine.backends.interface import Backend, Forward
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.layers.experts import ExpertsShape
from legato_engine.layers.inputs import StepInputs
from legato_engine.layers.interface import AttentionShape
from legato_engine.models import registry
from legato_engine.runner import runner as runners
from legato_engine.runner.plan import RunnerOptions
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.weights.opening import open_weights
from legato_protocol.sampling.parameters import SamplingParams

BLOCK_SIZE, MAX_LENGTH = 16, 4096
PARTS = ("attention", "linear", "experts", "head", "other operators", "sampling", "scheduling")
DECODES = ((1, 256), (8, 256), (32, 256), (32, 1000))  # rows, context
CHUNKS = ((256, 0), (512, 0), (512, 512), (512, 3072))  # tokens, position


@dataclass
class Clock:
    """Seconds by part, since they were last taken."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def timed(self, part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return work(*arguments, **named)
            finally:
                self.seconds[part] += time.perf_counter() - began

        return run

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, defaultdict(float)
        return taken


class TimedLayers:
    """The layers of `backend`, each in a clock and called by itself. Implements `Backend`."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self.nbytes = 0
        self._backend = backend
        self._clock = clock

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> Any:
        return self._backend.begin(inputs, arena)

    def logits(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        return forward(self.begin(inputs, arena))

    def embedding(self, name: str, rows: int, width: int) -> Any:
        return self._clock.timed("other operators", self._backend.embedding(name, rows, width))

    def norm(self, name: str, width: int) -> Any:
        return self._clock.timed("other operators", self._backend.norm(name, width))

    def sum(self, width: int) -> Any:
        return self._clock.timed("other operators", self._backend.sum(width))

    def output_norm(self, name: str, width: int) -> Any:
        return self._clock.timed("other operators", self._backend.output_norm(name, width))

    def linear(self, names: Sequence[str], inputs: int, outputs: Sequence[int], bias: bool = False) -> Any:
        return self._clock.timed("linear", self._backend.linear(names, inputs, outputs, bias))

    def attention(self, layer: int, shape: AttentionShape) -> Any:
        return self._clock.timed("attention", self._backend.attention(layer, shape))

    def silu_mul(self, width: int) -> Any:
        return self._clock.timed("other operators", self._backend.silu_mul(width))

    def gelu_mul(self, width: int) -> Any:
        return self._clock.timed("other operators", self._backend.gelu_mul(width))

    def experts(self, shape: ExpertsShape) -> Any:
        return self._clock.timed("experts", self._backend.experts(shape))

    def head(self, norm: str, weight: str, rows: int, width: int) -> Any:
        return self._clock.timed("head", self._backend.head(norm, weight, rows, width))


class Bench:
    def __init__(self, path: Path, dtype: str, threads: int) -> None:
        checkpoint = open_weights(path)
        self.runner = Runner.load(
            checkpoint,
            RunnerOptions(
                block_size=BLOCK_SIZE, kv_cache_bytes=4 << 30, dtype=dtype, threads=threads, max_length=MAX_LENGTH
            ),
        )
        self.clock = Clock()
        self._backend = self.runner._backend
        self._timed = TimedLayers(self._backend, self.clock)
        self.runner._model = registry.model_class(checkpoint.config)(checkpoint.config, self._timed)
        runners.sample = self.clock.timed("sampling", runners.sample)  # type: ignore[attr-defined]
        self.runner.warm_up()

    def scheduler(self, chunk: int) -> Scheduler:
        windows = self.runner.layout.windows
        limits = SchedulerLimits(
            "unified", BLOCK_SIZE, max_length=MAX_LENGTH, chunk_tokens=chunk, max_running=64, windows=windows
        )
        pool = BlockPool(self.runner.num_blocks, EventLog("epoch"), windows, BLOCK_SIZE)
        return Scheduler(limits, pool, "revision")

    def decode(self, rows: int, context: int, params: SamplingParams, steps: int) -> dict[str, float]:
        scheduler = self.scheduler(1 << 16)
        for number in range(rows):
            prompt = [(7 * i + 31 * number) % 40000 for i in range(context)]
            scheduler.add(Request(str(number), 1, prompt, context, params, 1e9), 0.0)
        self.step(scheduler)  # the prompts
        return self.fastest(lambda: self.step(scheduler), steps)

    def chunk(self, tokens: int, position: int, params: SamplingParams, steps: int) -> dict[str, float]:
        def last() -> dict[str, float]:
            scheduler = self.scheduler(tokens)
            prompt = [7 * i % 40000 for i in range(position + tokens)]
            scheduler.add(Request("r", 1, prompt, len(prompt), params, 1e9), 0.0)
            for _ in range(-(-position // tokens)):
                self.step(scheduler)
            return self.step(scheduler)

        return self.fastest(last, steps)

    def fastest(self, step: Callable[[], dict[str, float]], steps: int) -> dict[str, float]:
        """Returns the seconds of equal steps as workers compute them and, operator by operator, the seconds by part."""
        whole = min(step()["whole"] for _ in range(steps))
        self.runner._backend = self._timed
        fastest = min((step() for _ in range(steps)), key=lambda parts: parts["whole"])
        self.runner._backend = self._backend
        return fastest | {"step": whole}

    def step(self, scheduler: Scheduler) -> dict[str, float]:
        """One step; seconds by part, and of the whole."""
        self.clock.take()
        began = time.perf_counter()
        batch = self.clock.timed("scheduling", scheduler.schedule)(0.0)
        output = self.runner.step(batch)
        self.clock.timed("scheduling", scheduler.process)(batch, output, 0.0)
        whole = time.perf_counter() - began
        scheduler.pool.events.take()
        return self.clock.take() | {"whole": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="builtin:smollm2-135m-instruct", help="as `legato worker --model` (default: %(default)s)"
    )
    parser.add_argument("--dtype", default="Auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="alike decode steps; a fifth as many chunks")
    args = parser.parse_args()
    bench = Bench(model.resolve(args.model, print), args.dtype, args.threads)
    print(bench.runner.formats)
    print("| ms | step | by operator | " + " | ".join(PARTS) + " | Python |\n" + "| --- " * (len(PARTS) + 4) + "|")
    greedy = SamplingParams(max_tokens=2000, seed=1, temperature=0.0)
    sampled = SamplingParams(max_tokens=2000, seed=1, temperature=0.8, top_p=0.95)
    for rows, context in DECODES:
        show(f"decode, {rows} rows at {context}", bench.decode(rows, context, greedy, args.steps))
    show("decode, 32 rows at 256, top-p", bench.decode(32, 256, sampled, args.steps))
    for tokens, position in CHUNKS:
        show(f"{tokens} tokens at {position}", bench.chunk(tokens, position, greedy, max(2, args.steps // 5)))


def show(what: str, seconds: dict[str, float]) -> None:
    parts = [seconds.get(part, 0.0) for part in PARTS]
    cells = [seconds["step"], seconds["whole"], *parts, seconds["whole"] - sum(parts)]
    print(f"| {what} | " + " | ".join(f"{1e3 * cell:.2f}" for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
