"""Requests of a benchmark: prompts as token ids, so that all servers compute the same, and arrival times."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from legato_simulator.workload import traces
from legato_simulator.workload.workload import Arrival


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload. `at` is its arrival in seconds from the start, if the workload has times."""

    prompt: tuple[int, ...]
    output_tokens: int
    at: float | None = None


@dataclass(frozen=True, slots=True)
class TokenRange:
    """The token ids of random prompts: from `first` to below `last`, without special tokens."""

    first: int = 100
    last: int = 40_000

    def draw(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(self.first, self.last), k=count))


def fixed(count: int, input_tokens: int, output_tokens: int, tokens: TokenRange, seed: int) -> list[WorkloadRequest]:
    """Returns `count` prompts without common prefixes."""
    return list(islice(endless(input_tokens, output_tokens, tokens, seed), count))


def endless(input_tokens: int, output_tokens: int, tokens: TokenRange, seed: int) -> Iterator[WorkloadRequest]:
    """Yields prompts without common prefixes, each drawn on demand."""
    rng = random.Random(seed)
    while True:
        yield WorkloadRequest(tokens.draw(rng, input_tokens), output_tokens)


def shared_prefix(
    count: int, input_tokens: int, output_tokens: int, tokens: TokenRange, seed: int, prefixes: int, share: float
) -> list[WorkloadRequest]:
    """Returns prompts that begin with one of `prefixes` common prefixes, which is `share` (0 to 1) of their length."""
    rng = random.Random(seed)
    common = [tokens.draw(rng, round(input_tokens * share)) for _ in range(prefixes)]
    return [
        WorkloadRequest((*(head := rng.choice(common)), *tokens.draw(rng, input_tokens - len(head))), output_tokens)
        for _ in range(count)
    ]


def trace(
    path: Path, count: int, max_tokens: int, speed: float, tokens: TokenRange, seed: int
) -> list[WorkloadRequest]:
    """Returns the first `count` requests of a trace, with lengths scaled so that the longest fits `max_tokens`.

    Equal hash ids become equal tokens, so that prefixes are shared as in the trace. `speed` 2 plays it twice as fast.
    Raises TraceError, a ValueError, for an invalid file.
    """
    if count < 1:
        return []
    rows = list(islice(traces.arrivals(path), count))
    scale = min(1.0, max_tokens / max(row.prompt + row.output for row in rows))
    rng = random.Random(seed)
    return [
        WorkloadRequest(
            _prompt(row, max(1, int(row.prompt * scale)), scale, tokens, rng, seed),
            max(1, int(row.output * scale)),
            row.at / speed,
        )
        for row in rows
    ]


def _prompt(
    row: Arrival, length: int, scale: float, tokens: TokenRange, rng: random.Random, seed: int
) -> tuple[int, ...]:
    if not row.blocks:
        return tokens.draw(rng, length)
    per_block = max(1, int(traces.BLOCK * scale))
    prompt = [t for block in row.blocks for t in tokens.draw(random.Random(f"{seed}/{block}"), per_block)]
    return (*prompt, *tokens.draw(rng, max(0, length - len(prompt))))[:length]
