#!/usr/bin/env python3
"""Measures the cost of a mask: CPU time of one thread for each token of answers that match a schema, with the
vocabulary of the built-in model.

    python benchmarks/grammar/mask_time.py

The schemas come from `structured_output.py`; answers are made up, and split into the longest tokens that there are. As
many sequences as rows take turns, as in a step, since each has tables of its own in the processor's caches.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence

import numpy as np
from structured_output import SCHEMAS

from legato_cli.models import model
from legato_engine.grammars.position import GrammarPosition
from legato_engine.weights.opening import open_weights
from legato_grammar import vocabulary
from legato_grammar.guidance import Compiler
from legato_protocol.sampling.parameters import JSON_SCHEMA

WORDS = ("Whiskers", "Felix", "Mr. Tom", "Bella", "a", "Luna the 2nd", "Señor", "Max", "Charlie", "Tweety")
END = 2  # SmolLM2's <|im_end|>


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    path = model.resolve("builtin:smollm2-135m-instruct", print)
    tokens = vocabulary.read(path, open_weights(path).config.vocab_size)
    compiler, ids = Compiler(tokens), {raw: id for id, raw in enumerate(tokens.tokens) if id not in tokens.special}
    print("| schema | masks | mean, µs | p50 | p99 | first of an answer |\n| --- | --- | --- | --- | --- | --- |")
    for name, schema in SCHEMAS.items():
        grammar = compiler.compile(JSON_SCHEMA, json.dumps(schema))
        times = []
        for number in range(args.rounds):
            source = random.Random(number)
            outputs = [tokens(ids, answer(name, source))[: args.tokens] for _ in range(args.rows)]
            times.append(measure([GrammarPosition(grammar) for _ in outputs], outputs))
        first, later = np.array(times)[:, 0].ravel(), np.array(times)[:, 1:].ravel()
        p50, p99 = np.percentile(later, (50, 99))
        print(f"| {name} | {later.size} | {later.mean():.0f} | {p50:.0f} | {p99:.0f} | {first.mean():.0f} |")


def answer(name: str, source: random.Random) -> bytes:
    """The begin of one, long enough."""
    if name == "numbers":
        value: object = [source.randrange(10_000) for _ in range(200)]
    else:
        kinds = ("cat", "dog", "bird")
        value = [{"name": source.choice(WORDS), "kind": source.choice(kinds)} for _ in range(100)]
    return json.dumps(value, ensure_ascii=False).encode()


def tokens(ids: dict[bytes, int], text: bytes) -> list[int]:
    longest, split, place = max(map(len, ids)), [], 0
    while place < len(text):
        size = next(size for size in range(longest, 0, -1) if text[place : place + size] in ids)
        split.append(ids[text[place : place + size]])
        place += size
    return split


def measure(positions: Sequence[GrammarPosition], outputs: Sequence[Sequence[int]]) -> list[list[float]]:
    """Microseconds of each mask, [tokens, rows]."""
    times: list[list[float]] = []
    for known in range(min(map(len, outputs))):
        times.append([])
        for position, output in zip(positions, outputs, strict=True):
            began = time.thread_time_ns()
            position.allowed(output[:known], (END,), True)
            times[-1].append((time.thread_time_ns() - began) / 1000)
    return times


if __name__ == "__main__":
    main()
