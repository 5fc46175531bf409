"""What to ask: prompts as token ids, so that every server computes exactly the same, and when to ask it."""

import csv
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

TRACE_BLOCK = 512  # tokens behind one hash id in a Mooncake trace


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request of a workload. `at` is its arrival in seconds from the start, where the workload says so."""

    prompt: tuple[int, ...]
    output_tokens: int
    at: float | None = None


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Where random prompts take their ids from: `first … last`, which leaves out special tokens."""

    first: int = 100
    last: int = 40_000

    def draw(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(self.first, self.last), k=count))


def fixed(count: int, input_tokens: int, output_tokens: int, tokens: TokenRange, seed: int) -> list[WorkloadRequest]:
    """`count` prompts that share nothing."""
    rng = random.Random(seed)
    return [WorkloadRequest(tokens.draw(rng, input_tokens), output_tokens) for _ in range(count)]


def shared_prefix(
    count: int, input_tokens: int, output_tokens: int, tokens: TokenRange, seed: int, prefixes: int, share: float
) -> list[WorkloadRequest]:
    """Prompts whose first `share` is one of `prefixes` common beginnings."""
    rng = random.Random(seed)
    common = [tokens.draw(rng, round(input_tokens * share)) for _ in range(prefixes)]
    return [
        WorkloadRequest((*(head := rng.choice(common)), *tokens.draw(rng, input_tokens - len(head))), output_tokens)
        for _ in range(count)
    ]


def trace(
    path: Path, count: int, max_tokens: int, speed: float, tokens: TokenRange, seed: int
) -> list[WorkloadRequest]:
    """The first `count` requests of a trace, lengths scaled so that the longest of them fits `max_tokens`.

    Reads Mooncake's JSON lines (equal hash ids become equal tokens, so that prefixes are shared as in the trace) and
    Azure's CSV. `speed` 2 plays it twice as fast. Raises ValueError for a file that is neither.
    """
    if count < 1:
        return []
    rows = list(islice(_mooncake(path) if path.suffix == ".jsonl" else _azure(path), count))
    if not rows:
        raise ValueError(f"{path} has no requests")
    scale = min(1.0, max_tokens / max(row.input + row.output for row in rows))
    rng = random.Random(seed)
    return [
        WorkloadRequest(
            _prompt(row, max(1, int(row.input * scale)), scale, tokens, rng, seed),
            max(1, int(row.output * scale)),
            (row.at - rows[0].at) / speed,
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class _Row:
    at: float
    input: int
    output: int
    blocks: tuple[int, ...] = ()


def _prompt(row: _Row, length: int, scale: float, tokens: TokenRange, rng: random.Random, seed: int) -> tuple[int, ...]:
    if not row.blocks:
        return tokens.draw(rng, length)
    per_block = max(1, int(TRACE_BLOCK * scale))
    prompt = [t for block in row.blocks for t in tokens.draw(random.Random(f"{seed}/{block}"), per_block)]
    return (*prompt, *tokens.draw(rng, max(0, length - len(prompt))))[:length]


def _mooncake(path: Path) -> Iterator[_Row]:
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                yield _Row(row["timestamp"] / 1e3, row["input_length"], row["output_length"], tuple(row["hash_ids"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}:{number}: not a request of a Mooncake trace ({error})") from None


def _azure(path: Path) -> Iterator[_Row]:
    from datetime import datetime

    with path.open(newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 2):
            try:
                at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
                yield _Row(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            except (ValueError, KeyError) as error:
                raise ValueError(f"{path}:{number}: not a request of an Azure trace ({error})") from None
