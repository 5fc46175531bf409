"""Requests that come at their own times, however slow the answers are, while a test does something else."""

import asyncio
import threading
from collections import Counter
from types import TracebackType

import httpx
import kube
from service import Service

from legato_cli.bench import client, load, workload
from legato_cli.bench.client import Record

_bursts: Counter[str] = Counter()  # of each service: another seed for each, so that no prompt is cached


class Burst:
    """`requests` prompts of random tokens, `rate` a second. Each is a connection of its own, so gateways share them."""

    def __init__(self, service: Service, rate: float, requests: int, prompt: int, output: int) -> None:
        _bursts[service.name] += 1
        seed = _bursts[service.name]
        self._service = service
        self._rate = rate
        self._requests = workload.fixed(requests, prompt, output, workload.TokenRange(), seed)
        self._thread = threading.Thread(target=self._run, args=(seed,), daemon=True)
        self._records: list[Record] = []

    def __enter__(self) -> "Burst":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join(kube.PATIENCE)

    @property
    def over(self) -> bool:
        """True if all were answered, or failed."""
        return len(self._records) == len(self._requests)

    def failures(self) -> list[str]:
        """Waits until all were answered, and returns the errors of the others, of ones that do not end, too."""
        self._thread.join(kube.PATIENCE)
        open_ones = len(self._requests) - len(self._records)
        return [f"{open_ones} streams do not end"] * bool(open_ones) + [r.error for r in self._records if r.error]

    def ttft(self) -> list[float]:
        """Returns the seconds to the first tokens, shortest first."""
        return sorted(record.ttft for record in self._records if record.arrivals)

    def _run(self, seed: int) -> None:
        asyncio.run(self._send_all(seed))

    async def _send_all(self, seed: int) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self._service.url, timeout=kube.PATIENCE, limits=limits) as session:

            async def send(request: workload.WorkloadRequest) -> Record:
                record = await client.complete(session, self._service.name, request)
                self._records.append(record)
                return record

            await load.open_loop(send, self._requests, self._rate, seed)
