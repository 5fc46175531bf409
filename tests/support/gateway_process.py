"""`legato gateway` as a process of a test: started, asked at each of its ports, and ended."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

LEGATO = [sys.executable, "-m", "legato_cli.main", "gateway", "--max-length", "4096", "--served-name", "m"]
TOKEN = {"authorization": "Bearer secret"}
BODY: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 30, "seed": 7}
LIMIT = 90.0  # seconds: a hang is a failure, not a timeout of the suite


@dataclass
class GatewayProcess:
    """`client` asks at the public port, or at any URL."""

    process: asyncio.subprocess.Process
    ports: dict[str, int]
    client: httpx.AsyncClient

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"

    async def get(self, path: str, port: str = "http", token: bool = False) -> httpx.Response:
        return await self.client.get(self.url(port) + path, headers=TOKEN if token else {})

    async def ask(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json=BODY | fields)

    async def until(self, condition: Callable[[], Awaitable[bool]], is_so: bool = True) -> None:
        while await condition() is not is_so:  # noqa: ASYNC110 – another process
            await asyncio.sleep(0.01)

    async def until_ready(self, port: str = "http") -> None:
        async def ready() -> bool:
            return (await self.get("/readyz", port)).status_code == 200

        await self.until(ready)

    async def end(self) -> list[str]:
        """Ends as Kubernetes has it end; returns the lines that it logged, if they are read."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        outputs = await self.process.communicate()
        assert self.process.returncode == 0
        return [line for each in outputs if each for line in each.decode().splitlines()]


@contextlib.asynccontextmanager
async def gateway_process(
    folder: Path, model: Path, *flags: str, workers: Iterable[Any] = (), fds: tuple[int, ...] = (), **pipes: Any
) -> AsyncIterator[GatewayProcess]:
    """A gateway that has announced itself, in front of these workers, at ports of its own."""
    announced = folder / f"announced-{secrets.token_hex(4)}"
    flags_of_ports = ["--health-port=0", "--control-port=0", *([] if fds else ["--port=0"]), f"--announce={announced}"]
    named = [f"--worker={worker.name}={worker.address}" for worker in workers]
    command = [*LEGATO, f"--model={model}", *flags_of_ports, *named, *flags]
    environ = os.environ | {"LEGATO_TOKEN": "secret"}
    async with asyncio.timeout(LIMIT):
        process = await asyncio.create_subprocess_exec(*command, env=environ, pass_fds=fds, **pipes)
        try:
            while not announced.exists():
                assert process.returncode is None, "the gateway ended"
                await asyncio.sleep(0.01)
            ports = json.loads(announced.read_text())
            limits = httpx.Limits(max_connections=None)
            url = f"http://127.0.0.1:{ports['http']}"
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60, limits=limits) as client:
                made = GatewayProcess(process, ports, client)
                yield made
                await made.end()
        finally:
            if process.returncode is None:
                process.kill()


async def refused(*flags: str) -> str:
    """The last line of a gateway that does not start."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*LEGATO, *flags, stdout=pipe, stderr=pipe)
    _, errors = await asyncio.wait_for(process.communicate(), LIMIT)
    assert process.returncode == 2
    assert b"Traceback" not in errors
    return errors.decode().splitlines()[-1]
