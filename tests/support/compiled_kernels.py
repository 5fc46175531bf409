"""Kernels that random steps would have Triton compile, and that were not compiled in the warm-up; called by
`uninterpreted`.

Nothing is compiled: what a launch would be compiled for is taken from Triton before it compiles.
"""

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import window_tables
from interpreted_models import load, random_weights

from legato_engine.backends.cuda.device import Interpreted
from legato_engine.kernels.gpu.ahead import launches
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Batch, Draw, Row, Targets
from legato_protocol.sampling.parameters import SamplingParams

CHUNK = 64  # tokens of prompts in one step
LONGEST = 256  # tokens of a sequence
WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"top_k": 5, "min_p": 0.1},
    {"top_p": 0.9, "repetition_penalty": 1.3},
    {"logit_bias": {1: 2.0, 7: -2.0}, "logprobs": 3},
    {"allowed_token_ids": (1, 2, 3), "logprobs": 0},
)


class EvenTokens:
    """A constraint."""

    def __init__(self, vocab: int) -> None:
        self._mask = b"\x55" * (4 * -(-vocab // 32))

    def allowed(self, output: Any, stops: Any, early: bool) -> bytes:
        return self._mask

    def at_start(self) -> "EvenTokens":
        return self


class RandomSteps:
    """Steps as a scheduler may make them, of any size up to the largest."""

    def __init__(self, runner: Runner, vocab: int, max_batch: int, adapters: Sequence[Any]) -> None:
        self._random = random.Random(1)
        self._runner = runner
        self._vocab = vocab
        self._most = max_batch
        self._adapters = adapters

    def rows(self) -> tuple[Row, ...]:
        """Rows that decode, rows of prompts, or both; of one row, a full batch, and anything between."""
        count = self._random.choice((1, self._most, self._random.randint(1, self._most)))
        prompts = self._random.choice((0, 0, 1, 1, 2, count))
        rows, left = [], CHUNK
        for index in range(count):
            tokens = 1 if index >= prompts else min(left, self._random.choice((2, 8, 9, 15, 16, 32, 33, 64)))
            if tokens:
                rows.append(self._row(tokens))
                left -= tokens if index < prompts else 0
        return tuple(rows)

    def _row(self, count: int) -> Row:
        start = self._random.choice((0, self._random.randint(0, LONGEST - count)))
        tokens = [self._random.randrange(self._vocab) for _ in range(count)]
        blocks = [self._random.randrange(20) for _ in range(self._runner.layout.blocks_for(start + count))]
        windows = window_tables.of_row(self._runner, blocks, start)
        if count > 1 and self._random.random() < 0.3:
            return Row(tokens, start, blocks, windows=windows)  # a piece of a prompt, which samples nothing
        targets = Targets(tokens[1:], 2) if count > 1 and self._random.random() < 0.2 else None
        draws = tuple(self._draw(choice, start + count) for choice in range(self._random.choice((1, 1, 1, 3))))
        adapter = self._random.choice((None, None, None, None, self._random.choice(self._adapters)))
        return Row(tokens, start, blocks, draws, targets, adapter, windows)

    def _draw(self, choice: int, position: int) -> Draw:
        params = SamplingParams(**{"max_tokens": 9, "seed": 0} | self._random.choice(WAYS))
        constraint = EvenTokens(self._vocab) if self._random.random() < 0.1 else None
        return Draw(choice, position, params, [1] * position, position, constraint)


@contextlib.contextmanager
def asked_for() -> Iterator[set[str]]:
    """Collects the kernels that would be compiled within: names, and all that Triton specializes them on."""
    found: set[str] = set()

    def note(*, fn: Any, compile: Any, **_rest: Any) -> bool:
        found.add(f"{fn.name.rpartition('.')[2]} {compile['key']}")
        return True  # Triton then neither compiles nor launches it, and asks again the next time

    triton.knobs.runtime.jit_cache_hook = note
    try:
        with launches("sm_90"):
            yield found
    finally:
        triton.knobs.runtime.jit_cache_hook = None


def told(model: str, block_size: int, max_batch: int, steps: int) -> dict[str, list[str]]:
    """Kernels asked for in the warm-up, in this number of steps afterwards, and only in these."""
    weights = random_weights(model)
    with torch.inference_mode(), asked_for() as found:
        runner = load(
            weights, dtype="float16", gpu=Interpreted(132, "sm_90"),
            block_size=block_size, max_batch=max_batch, chunk_tokens=CHUNK, max_length=LONGEST, threads=1,
        )  # fmt: skip
        runner.warm_up()
        runner.warm_up_adapter(runner.adapter({}))
        runner.capture()
        warm = set(found)
        found.clear()
        made = RandomSteps(runner, weights.config.vocab_size, max_batch, [runner.adapter({})])
        for _ in range(steps):
            runner.step(Batch(made.rows()))
    return {"warm-up": sorted(warm), "steps": sorted(found), "only in steps": sorted(found - warm)}


def told_by_case(cases: list[list[Any]], steps: int) -> list[dict[str, list[str]]]:
    """For each model, block size and largest batch, in one process, as starting one takes seconds."""
    return [told(*case, steps) for case in cases]
