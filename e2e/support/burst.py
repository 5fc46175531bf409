"""Requests that come at their own times, however slow the answers are, while a test does something else."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import kube
from meanwhile import Meanwhile
from samples import ROLES, Samples
from service import Service

from legato_cli.bench import client, load, workload
from legato_cli.bench.client import Record

Note = Callable[[str, float | str], None]
# Loads of which each needs more of one pool.
PROMPTS = {"rate": 3.0, "requests": 40, "prompt": 100, "output": 2}
ANSWERS = {"rate": 8.0, "requests": 40, "prompt": 8, "output": 60}
_bursts: Counter[str] = Counter()  # of each service: another seed for each, so that no prompt is cached


class Burst(Meanwhile):
    """`requests` prompts of random tokens, `rate` a second. Each is a connection of its own, so gateways share them.

    Leaving it waits until all were answered, and fails where one was not.
    """

    def __init__(self, service: Service, rate: float, requests: int, prompt: int, output: int) -> None:
        super().__init__()
        _bursts[service.name] += 1
        self._seed = _bursts[service.name]
        self._service = service
        self._rate = rate
        self._requests = workload.fixed(requests, prompt, output, workload.TokenRange(), self._seed)
        self._records: list[Record] = []

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if not any(raised):
            assert [record.error for record in self._records if record.error] == []
            assert len(self._records) == len(self._requests), "streams do not end"

    def ttft(self) -> list[float]:
        """Returns the seconds to the first tokens, shortest first."""
        return sorted(record.ttft for record in self._records if record.arrivals)

    def _run(self) -> None:
        asyncio.run(self._send_all())

    async def _send_all(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=self._service.url, timeout=kube.PATIENCE, limits=limits) as session:

            async def send(request: workload.WorkloadRequest) -> Record:
                record = await client.complete(session, self._service.name, request)
                self._records.append(record)
                return record

            await load.open_loop(send, self._requests, self._rate, self._seed)


def grow(service: Service, samples: Samples, load: Mapping[str, Any], role: str, note: Note) -> None:
    """Sends a burst that makes a pool grow and not the other one, and waits until each has one worker again."""
    (other,) = {*ROLES} - {role}
    least = samples.last.desired[role]
    began = time.monotonic()
    with Burst(service, **load) as burst:
        pass
    note("first desired after, s", samples.first(role, least, began))
    note("desired at most", f"{role} {samples.largest(role, began)}, {other} {samples.largest(other, began)}")
    note("TTFT p50, s", burst.ttft()[len(burst.ttft()) // 2])
    assert samples.largest(role, began) > least
    assert samples.largest(other, began) <= 2
    samples.until(lambda sample: sample.settled and sample.desired == dict.fromkeys(ROLES, 1), "it has returned")
    note("returned after, s", samples.last.at - began)
