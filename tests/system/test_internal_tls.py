"""A service goes from plain to TLS between its processes and on to strict, with new certificates, under streams."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import certificates
import httpx
import pytest
from certificates import TLSFiles
from paced_fleet import kill, start_gateway, start_worker, stream_text
from scrape import metric
from worker_process import TOKEN, Process

from legato_operator.observing.gateway_api import HttpGateways
from legato_operator.observing.observed import PeerTLS
from legato_operator.observing.worker_api import HttpWorkers

PATIENCE = 120.0  # seconds; only a hang reaches it
NAME = "s-workers.demo.svc"
STRICT = ("--internal-tls-mode", "Strict")
pytestmark = pytest.mark.anyio


class Gateway:
    """A process, and streams that go on through it until `finish`."""

    def __init__(self, folder: Path, name: str, *flags: str) -> None:
        self._workers = folder / f"{name}-workers.json"
        self.follow()
        flags = ("--hold-without-workers", "--workers-file", str(self._workers), *flags)
        self.process = start_gateway(folder, name, *flags)
        self.ports = self.process.ports
        self.texts: list[str] = []
        self._stop = asyncio.Event()
        self._streams: list[asyncio.Task[None]] = []

    def follow(self, *workers: dict[str, Any]) -> None:
        draft = self._workers.with_suffix(".draft")
        draft.write_text(json.dumps(workers))
        draft.replace(self._workers)

    def stream(self) -> None:
        self._streams = [asyncio.create_task(self._go_on()) for _ in range(2)]

    async def _go_on(self) -> None:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.ports['http']}", timeout=PATIENCE) as http:
            while not self._stop.is_set():
                self.texts.append(await stream_text(http, model="m", prompt="a prompt of some tokens", max_tokens=100))

    async def served(self) -> None:
        """Returns once two more streams are complete."""
        target = len(self.texts) + 2
        while len(self.texts) < target:
            failed = [task.exception() for task in self._streams if task.done()]
            assert not failed, failed
            await asyncio.sleep(0.02)

    async def finish(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._streams)


def plain(process: Process, name: str) -> dict[str, Any]:
    return {"worker": name, "address": f"127.0.0.1:{process.ports['control']}"}


def secured(process: Process, name: str) -> dict[str, Any]:
    return {"worker": name, "address": f"127.0.0.1:{process.ports['control-tls']}", "tls": True}


async def ended(process: Process) -> None:
    """It drains, hands its sequences over, and ends by itself."""
    process.popen.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.popen.wait, PATIENCE) == 0


async def test_from_plain_to_strict_with_new_certificates_no_stream_fails(tmp_path: Path) -> None:
    names = f"subjectAltName=DNS:{NAME}"
    first, second = (certificates.make(tmp_path / which, names=names) for which in ("first", "second"))
    folder = tmp_path / "internal-tls"
    folder.mkdir()
    first.install(folder)
    flags = ["--internal-tls-folder", str(folder), "--internal-tls-name", NAME, "--control-tls-port", "0"]

    async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:

        async def start(make: Callable[..., Any], name: str, *flags: str) -> Any:
            made = await asyncio.to_thread(make, tmp_path, name, *flags)
            stack.callback(kill, getattr(made, "process", made))
            return made

        old_worker, old = await start(start_worker, "a"), await start(Gateway, "old")
        old.follow(plain(old_worker, "a"))
        old.stream()
        await old.served()

        permissive, new = await start(start_worker, "b", *flags), await start(Gateway, "new", *flags)
        old.follow(plain(old_worker, "a"), plain(permissive, "b"))  # it knows no TLS
        new.follow(plain(old_worker, "a"), secured(permissive, "b"))
        new.stream()
        await new.served()
        await ended(old_worker)
        await asyncio.gather(old.served(), new.served())
        assert not await metric(permissive.ports["health"], "legato_worker_transfer", what="refused_peers")
        await _rotated(session, folder, first, second, permissive, new)
        await old.finish()

        strict, last = await start(start_worker, "c", *flags, *STRICT), await start(Gateway, "last", *flags, *STRICT)
        assert strict.ports.keys() == {"health", "control-tls"}
        assert last.ports.keys() == {"http", "health", "control-tls"}
        for gateway in (new, last):
            gateway.follow(secured(permissive, "b"), secured(strict, "c"))
        last.stream()
        await last.served()
        await ended(permissive)
        await asyncio.gather(new.served(), last.served())
        assert not await metric(strict.ports["health"], "legato_worker_transfer", what="refused_peers")
        await asyncio.gather(new.finish(), last.finish())
        assert len({*old.texts, *new.texts, *last.texts}) == 1


async def _rotated(
    session: aiohttp.ClientSession, folder: Path, first: TLSFiles, second: TLSFiles, asked: Process, gateway: Gateway
) -> None:
    """To another authority, through a time in which both are trusted. The operator asks over TLS before and after."""
    workers, gateways = HttpWorkers(session), HttpGateways(session)
    address, reported = f"127.0.0.1:{asked.ports['control-tls']}", f"127.0.0.1:{gateway.ports['control-tls']}"

    async def known(files: TLSFiles) -> bool:
        tls = PeerTLS(files.authority.read_text(), NAME)
        states = [await workers.state(address, (TOKEN,), tls), await gateways.report(reported, (TOKEN,), tls)]
        return all(state is not None for state in states)

    assert await known(first)
    both = first.authority.read_text() + second.authority.read_text()
    second.install(folder)
    (folder / "ca.crt").write_text(both)
    while not await known(second):  # noqa: ASYNC110 – of other processes
        await asyncio.sleep(0.05)
    await gateway.served()
