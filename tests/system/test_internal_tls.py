"""A service goes from plain to TLS between its processes and on to strict, with new certificates, under streams."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import certificates
import httpx
import worker_process
from certificates import TLSFiles
from scrape import metric
from worker_process import TOKEN, Process

from legato_operator.observing.gateway_api import HttpGateways
from legato_operator.observing.observed import PeerTLS
from legato_operator.observing.worker_api import HttpWorkers

PATIENCE = 120.0  # seconds; only a hang reaches it
NAME = "s-workers.demo.svc"
MODEL = "builtin:smollm2-135m-instruct"
PROFILE = """{"source": "a test", "kvTokens": 8192, "startSeconds": 0, "step":
{"perStep": 0.01, "perRow": 1e-5, "perContext": 1e-9, "perToken": 1e-6, "perPair": 1e-10}}"""
BODY = {
    "model": "m",
    "prompt": "a prompt of some tokens",
    "max_tokens": 100,
    "stream": True,
    "seed": 1,
    "ignore_eos": True,
}


class Gateway:
    """A process, and streams that go on through it until `finish`."""

    def __init__(self, process: asyncio.subprocess.Process, ports: dict[str, int], workers: Path) -> None:
        self.process, self.ports, self._workers = process, ports, workers
        self.texts: list[str] = []
        self._stop = asyncio.Event()
        self._streams: list[asyncio.Task[None]] = []

    def follows(self, *workers: dict[str, Any]) -> None:
        write(self._workers, list(workers))

    def stream(self, count: int = 2) -> None:
        self._streams = [asyncio.create_task(self._go_on()) for _ in range(count)]

    async def _go_on(self) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.ports['http']}", timeout=PATIENCE) as http:
            while not self._stop.is_set():
                self.texts.append(await text_of(http))

    async def served(self, more: int = 2) -> None:
        """So many streams more are complete."""
        target = len(self.texts) + more
        while len(self.texts) < target:
            failed = [task.exception() for task in self._streams if task.done()]
            assert not failed, failed
            await asyncio.sleep(0.02)

    async def finish(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._streams)


async def text_of(http: httpx.AsyncClient) -> str:
    """One stream, whole."""
    text, finish = "", None
    async with http.stream("POST", "/v1/completions", json=BODY) as answer:
        assert answer.status_code == 200, (await answer.aread()).decode()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    text, finish = text + choice["text"], choice["finish_reason"] or finish
    assert finish == "length", finish
    return text


def write(path: Path, content: Any) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def worker(folder: Path, name: str, *flags: str) -> Process:
    (folder / name).mkdir()
    profile = folder / "profile.json"
    profile.write_text(PROFILE)
    paced = ("--runner", "paced", "--profile", str(profile), "--transport", "TCP", "--name", name)
    return worker_process.start(folder / name, *paced, *flags)


@contextlib.asynccontextmanager
async def gateway(folder: Path, name: str, *flags: str) -> AsyncIterator[Gateway]:
    announced, workers = folder / f"{name}.json", folder / f"{name}-workers.json"
    write(workers, [])
    own = ["--model", MODEL, "--served-name", "m", "--max-length", "512", "--announce", str(announced)]
    ports = ["--port", "0", "--health-port", "0", "--control-port", "0", "--hold-without-workers"]
    command = [sys.executable, "-m", "legato_cli.main", "gateway", *own, *ports, "--workers-file", str(workers), *flags]
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | {"LEGATO_TOKEN": TOKEN})
    try:
        while not announced.exists():
            assert process.returncode is None
            await asyncio.sleep(0.02)
        yield Gateway(process, json.loads(announced.read_text()), workers)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def plain(process: Process, name: str) -> dict[str, Any]:
    return {"worker": name, "address": f"127.0.0.1:{process.ports['control']}"}


def secured(process: Process, name: str) -> dict[str, Any]:
    return {"worker": name, "address": f"127.0.0.1:{process.ports['control-tls']}", "tls": True}


async def ended(process: Process) -> None:
    """It drains, hands its sequences over, and ends by itself."""
    process.popen.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.popen.wait, PATIENCE) == 0


async def until(condition: Any) -> None:
    while not await condition():  # noqa: ASYNC110 - of other processes
        await asyncio.sleep(0.05)


def test_from_plain_to_strict_with_new_certificates_no_stream_fails(tmp_path: Path) -> None:
    first = certificates.make(tmp_path / "first", names=f"subjectAltName=DNS:{NAME}")
    second = certificates.make(tmp_path / "second", names=f"subjectAltName=DNS:{NAME}")
    folder = tmp_path / "internal-tls"
    folder.mkdir()
    first.install(folder)
    flags = ["--internal-tls-folder", str(folder), "--internal-tls-name", NAME, "--control-tls-port", "0"]
    workers: list[Process] = []

    def start(name: str, *flags: str) -> Process:
        workers.append(worker(tmp_path, name, *flags))
        return workers[-1]

    async def check() -> None:
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
            old_worker = await asyncio.to_thread(start, "a")
            old = await stack.enter_async_context(gateway(tmp_path, "old"))
            old.follows(plain(old_worker, "a"))
            old.stream()
            await old.served()

            permissive = await asyncio.to_thread(start, "b", *flags)
            new = await stack.enter_async_context(gateway(tmp_path, "new", *flags))
            old.follows(plain(old_worker, "a"), plain(permissive, "b"))  # it knows no TLS
            new.follows(plain(old_worker, "a"), secured(permissive, "b"))
            new.stream()
            await new.served()
            await ended(old_worker)
            await asyncio.gather(old.served(), new.served())
            assert not await metric(permissive.ports["health"], "legato_worker_transfer", what="refused_peers")
            await _rotated(session, folder, first, second, permissive, new)
            await old.finish()

            strict = await asyncio.to_thread(start, "c", *flags, "--internal-tls-mode", "Strict")
            assert strict.ports.keys() == {"health", "control-tls"}
            last = await stack.enter_async_context(gateway(tmp_path, "last", *flags, "--internal-tls-mode", "Strict"))
            assert last.ports.keys() == {"http", "health", "control-tls"}
            new.follows(secured(permissive, "b"), secured(strict, "c"))
            last.follows(secured(permissive, "b"), secured(strict, "c"))
            last.stream()
            await last.served()
            await ended(permissive)
            await asyncio.gather(new.served(), last.served())
            assert not await metric(strict.ports["health"], "legato_worker_transfer", what="refused_peers")
            await asyncio.gather(new.finish(), last.finish())
            assert len({*old.texts, *new.texts, *last.texts}) == 1

    try:
        asyncio.run(check())
    finally:
        for process in workers:
            process.popen.kill()
            process.popen.wait()


async def _rotated(
    session: aiohttp.ClientSession, folder: Path, first: TLSFiles, second: TLSFiles, asked: Process, gateway: Gateway
) -> None:
    """To another authority, through a time in which both are trusted. The operator asks over TLS before and after."""
    workers, gateways = HttpWorkers(session), HttpGateways(session)
    address, reported = f"127.0.0.1:{asked.ports['control-tls']}", f"127.0.0.1:{gateway.ports['control-tls']}"

    async def knows(files: TLSFiles) -> bool:
        tls = PeerTLS(files.authority.read_text(), NAME)
        states = [await workers.state(address, (TOKEN,), tls), await gateways.report(reported, (TOKEN,), tls)]
        return all(state is not None for state in states)

    assert await knows(first)
    both = first.authority.read_text() + second.authority.read_text()
    second.install(folder)
    (folder / "ca.crt").write_text(both)
    await until(lambda: knows(second))
    await gateway.served()
