"""Measures how long a disconnected client keeps blocks: from closing its stream until every worker's blocks are free.

    legato up -f benchmarks/manifests/disaggregated.yaml --port 8080
    python benchmarks/service/cancel.py http://127.0.0.1:8080 --cancels 30

Two cases: the stream is closed while tokens are decoded, and while a long prompt is computed and pushed (both workers
hold blocks for it then). Blocks are read from the gateway's state, which has the workers' last reports: a
time includes that report and half a poll, and is never too short. Nothing else may use the service meanwhile.
"""

import argparse
import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any

import httpx

from legato_cli.bench import workload
from legato_cli.services import state
from legato_cli.ui import sources

LOOK = 0.01  # seconds between polls
PATIENCE = 60.0
LIMIT_MS = 1000.0  # the promise
ANSWER = 400  # tokens asked for: more than come before the stream is closed


class Service:
    """The served model, and what its workers hold."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http = http
        self._model = model

    async def workers(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = (await state.read(sources.source(None, None)))[0]["workers"]
        return workers

    async def until_free(self) -> None:
        """Until no worker holds a block for anybody. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while not all(map(_free, await self.workers())):  # noqa: ASYNC110 - only polling shows it
                await asyncio.sleep(LOOK)

    async def until_both_hold_blocks(self) -> None:
        """Until every worker holds blocks: the prompt is being computed and pushed. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while not all(worker["used_blocks"] for worker in await self.workers()):  # noqa: ASYNC110 - as above
                await asyncio.sleep(LOOK)

    @contextlib.asynccontextmanager
    async def streaming(self, prompt: tuple[int, ...]) -> AsyncIterator[AsyncIterator[bytes]]:
        """A stream's pieces; leaving closes the connection."""
        body = {"model": self._model, "prompt": prompt, "max_tokens": ANSWER, "ignore_eos": True, "stream": True}
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            yield response.aiter_bytes()


def _free(worker: dict[str, Any]) -> bool:
    held = ("used_blocks", "quarantined_blocks", "running", "waiting")
    return not any(worker[what] for what in held)


async def decoding(service: Service, prompt: tuple[int, ...]) -> float:
    """Seconds after a close in mid-answer."""
    async with service.streaming(prompt) as pieces:
        for _ in range(8):
            await anext(pieces)
        closed = perf_counter()
    await service.until_free()
    return perf_counter() - closed


async def prefilling(service: Service, prompt: tuple[int, ...]) -> float:
    """Seconds after a close before the first token. Raises RuntimeError when the prompt was computed too soon."""

    async def ask() -> None:
        async with service.streaming(prompt) as pieces:
            await anext(pieces)

    asking = asyncio.create_task(ask())
    await service.until_both_hold_blocks()
    if asking.done():
        raise RuntimeError("the first token came before both workers were seen to hold blocks: ask with longer prompts")
    closed = perf_counter()
    asking.cancel()
    await service.until_free()
    return perf_counter() - closed


async def measure(args: argparse.Namespace) -> None:
    """Prints a row for each case."""
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        service = Service(http, (await http.get("/v1/models")).json()["data"][0]["id"])
        for case, length in ((decoding, args.input_tokens), (prefilling, args.long_tokens)):
            times, seed = [], random.SystemRandom().getrandbits(32)  # no prompt may be cached by an earlier run
            for request in workload.fixed(args.cancels + 1, length, ANSWER, workload.TokenRange(), seed):
                await service.until_free()
                times.append(1e3 * await case(service, request.prompt))
            print(_row(case.__name__, times[1:]), flush=True)  # the first one warms up


def _row(case: str, times: list[float]) -> str:
    ordered, late = sorted(times), sum(time > LIMIT_MS for time in times)
    p50, p99 = (ordered[max(0, -(-len(ordered) * p // 100) - 1)] for p in (50, 99))
    return f"| {case} | {p50:.0f} | {p99:.0f} | {late} of {len(times)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--cancels", type=int, default=30)
    parser.add_argument("--input-tokens", type=int, default=128, help="of a prompt that is cancelled while decoding")
    parser.add_argument("--long-tokens", type=int, default=1536, help="of a prompt that is cancelled while prefilling")
    args = parser.parse_args()
    print("| closed while | p50, ms | p99, ms | beyond 1 s |\n| --- | --- | --- | --- |", flush=True)
    asyncio.run(measure(args))


if __name__ == "__main__":
    main()
