"""Measures a profile of running workers: sends prompts and answers of many sizes, and reads the fitted step costs."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from time import strftime
from typing import Any

from legato_cli.bench import workload
from legato_cli.bench.workload import TokenRange, WorkloadRequest
from legato_cli.errors import ServiceUnavailable
from legato_cli.services import state
from legato_cli.ui import sources
from legato_engine.runner.profile import Profile, StepTimes

PROMPTS = (32, 96, 256, 512, 1024, 2048)  # tokens; sizes that do not fit twice into the context are left out
EACH = 8  # prompts of each size
ANSWER = 64  # tokens
ROWS = (1, 4, 16, 32)  # concurrent answers

Load = tuple[str, int, list[WorkloadRequest]]  # name, concurrency, requests


def loads(context: int, tokens: TokenRange, seed: int) -> list[Load]:
    """Returns loads of single and concurrent prompts, then of concurrent answers to short and long prompts."""
    sizes = [size for size in PROMPTS if 2 * size <= context] or [max(1, context // 2)]
    made: list[Load] = []
    for concurrency in (1, 3):
        prompts = [
            request
            for n in range(EACH)
            for size in sizes
            for request in workload.fixed(1, size, 1, tokens, seed + n * 100_000 + concurrency * 10_000 + size)
        ]
        made.append((f"prompts, c = {concurrency}", concurrency, prompts))
    for rows in ROWS:
        for size in (sizes[0], sizes[-1] // 2 or 1):
            answers = workload.fixed(rows, size, min(ANSWER, context // 4 or 1), tokens, seed + rows * 1_000_000 + size)
            made.append((f"answers to {size} tokens, c = {rows}", rows, answers))
    return made


async def read(namespace: str | None, service: str | None, model: str) -> Profile:
    """Reads the profile from the reports of a running service's workers. Raises ValueError."""
    try:
        states = await state.read(sources.source(namespace, service))
    except ServiceUnavailable as error:
        raise ValueError(f"no profile: {error}") from None
    return of_workers(
        states[0]["workers"], f"measured by legato bench {strftime('%Y-%m-%d')}; the start was not measured", model
    )


def of_workers(workers: Sequence[Mapping[str, Any]], source: str, model: str = "") -> Profile:
    """Returns the mean costs: of prompts at prefill workers, of decoding at decode workers. Raises ValueError.

    The fixed cost of a step is taken from decode steps, where it weighs most.
    """
    prefill = [cost for worker in workers if worker.get("role") != "decode" and (cost := worker.get("prefill_cost"))]
    prefill = prefill or [cost for worker in workers if (cost := worker.get("prefill_cost"))]
    decoding = [worker for worker in workers if worker.get("decode_cost")]
    if not prefill or not decoding:
        raise ValueError(f"no worker has reported the cost of {'decoding' if prefill else 'prompts'} yet")

    def mean(costs: Sequence[Mapping[str, float]], name: str) -> float:
        return fmean(cost[name] for cost in costs)

    decode = [worker["decode_cost"] for worker in decoding]
    step = StepTimes(
        max(mean(decode, "per_step"), 1e-9),
        mean(decode, "per_row"),
        mean(decode, "per_context"),
        mean(prefill, "per_token"),
        mean(prefill, "per_pair"),
    )
    degrees = {worker["ranks"] for worker in workers if worker.get("prefill_cost") or worker.get("decode_cost")}
    if len(degrees) > 1:
        raise ValueError(f"workers have different degrees ({', '.join(map(str, sorted(degrees)))}): a profile has one")
    kv_tokens = min(worker["total_blocks"] * worker["block_size"] for worker in decoding)
    windows = tuple(decoding[0].get("windows", ()))
    return Profile(source, step, kv_tokens, start_seconds=0.0, windows=windows, tensor=degrees.pop(), model=model)
