"""Three hundred sequences run on one worker, half of which came from another that was asked to leave."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from paced_fleet import kill, start_gateway, start_worker
from worker_process import PATIENCE, Process, until

SEQUENCES = 300
BODY = {"model": "m", "prompt": "Once upon a time", "max_tokens": 400, "seed": 1, "stream": True}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Process, ...]]:
    """A gateway and two paced workers, in steps that are slow enough for all requests to be in flight together."""
    workers = [start_worker(tmp_path, name, kv_tokens=330 * 512, perStep=0.5) for name in ("u0", "u1")]
    named = [f"{worker.log.parent.name}=127.0.0.1:{worker.ports['control']}" for worker in workers]
    gateway = start_gateway(tmp_path, "gateway", *[word for each in named for word in ("--worker", each)])
    until(lambda: [bool(worker.get("role")) for worker in gateway.state()["workers"]] == [True, True])
    yield gateway, *workers
    kill(gateway, *workers)


async def test_a_worker_runs_as_many_sequences_as_its_memory_holds_and_takes_them_from_another(
    fleet: tuple[Process, ...],
) -> None:
    gateway, leaving, staying = fleet
    assert staying.state()["max_running"] == 320, "of 330 with 512 tokens, in multiples of 64"
    url, texts = f"http://127.0.0.1:{gateway.ports['http']}/v1/completions", [""] * SEQUENCES

    def running() -> list[int]:
        return [worker.state()["running"] for worker in (leaving, staying)]

    async with httpx.AsyncClient(limits=httpx.Limits(), timeout=None, trust_env=False) as client:
        reading = [asyncio.create_task(_read(client, url, texts, index)) for index in range(SEQUENCES)]
        await asyncio.to_thread(until, lambda: sum(running()) == SEQUENCES and min(running()) > SEQUENCES / 4)
        leaving.popen.send_signal(signal.SIGTERM)
        await asyncio.to_thread(until, lambda: staying.state()["running"] == SEQUENCES)
        assert await asyncio.to_thread(leaving.popen.wait, PATIENCE) == 0
        before = [len(text) for text in texts]
        await asyncio.to_thread(until, lambda: all(len(texts[i]) > before[i] for i in range(SEQUENCES)))
        for task in reading:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    longest = max(texts, key=len)
    assert all(longest.startswith(text) for text in texts), "a token was lost, repeated or another one"
    assert staying.state()["totals"]["received_handoffs"] > SEQUENCES / 4
    assert staying.state()["totals"]["preemptions"] == 0
    until(lambda: staying.state()["blocks"]["used"] == 0)


async def _read(client: httpx.AsyncClient, url: str, texts: list[str], index: int) -> None:
    async with client.stream("POST", url, json=BODY) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                texts[index] += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
