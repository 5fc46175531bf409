"""Load generators: closed loop (fixed concurrency) or open loop (a rate, or the times of a trace)."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from legato_cli.bench.client import Record
from legato_cli.bench.workload import WorkloadRequest

Send = Callable[[WorkloadRequest], Awaitable[Record]]


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Records of one load, and the seconds from its first request to its last answer."""

    records: list[Record]
    seconds: float


async def closed(send: Send, requests: Iterable[WorkloadRequest], concurrency: int) -> LoadRun:
    """Keeps `concurrency` requests in flight until all are answered."""
    todo, records, start = iter(requests), [], perf_counter()

    async def user() -> None:
        for request in todo:
            records.append(await send(request))

    await asyncio.gather(*(user() for _ in range(concurrency)))
    return LoadRun(records, perf_counter() - start)


async def open_loop(send: Send, requests: list[WorkloadRequest], rate: float | None, seed: int) -> LoadRun:
    """Sends at `rate` requests a second (Poisson), or at the requests' own times, however slow the answers are."""
    rng, start, at = random.Random(seed), perf_counter(), 0.0
    tasks = []
    for request in requests:
        at = at + rng.expovariate(rate) if rate else request.at or 0.0
        await asyncio.sleep(max(0.0, start + at - perf_counter()))
        tasks.append(asyncio.ensure_future(send(request)))
    records = await asyncio.gather(*tasks)
    return LoadRun(list(records), perf_counter() - start)
