"""Large bodies that cannot be served: refused with a 4xx by a real gateway, whose memory stays bounded."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import large_bodies
import pytest

SIZE = 8_300_000  # just within what is read at all
MOST_MEMORY = 400 << 20
LONGEST_ANSWER = 2048  # bytes: nothing of the body is told back but its beginning


@dataclass
class Process:
    pid: int
    url: str

    def peak(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.fixture(scope="module")
def process(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A gateway without workers: whatever it accepts, it holds."""
    announced = tmp_path_factory.mktemp("gateway") / "announced.json"
    command = [sys.executable, "-m", "legato_cli.main", "gateway", "--model", str(model), "--served-name", "m"]
    command += ["--max-length", "4096", "--port", "0", "--announce", str(announced)]
    with subprocess.Popen(command, env=os.environ | {"LEGATO_TOKEN": "secret"}) as running:
        while not announced.exists():
            assert running.poll() is None, "the gateway ended"
            time.sleep(0.01)
        yield Process(running.pid, f"http://127.0.0.1:{json.loads(announced.read_text())['http']}")
        running.send_signal(signal.SIGTERM)
    assert running.returncode == 0


@pytest.fixture
async def client(process: Process) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=process.url, trust_env=False, timeout=120, headers={"content-type": "application/json"}
    ) as made:
        yield made


async def refuse(process: Process, client: httpx.AsyncClient, path: str, body: bytes) -> None:
    answer = await client.post(path, content=body)
    assert answer.status_code == 400, answer.text[:500]
    assert len(answer.content) < LONGEST_ANSWER
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert process.peak() < MOST_MEMORY


@pytest.mark.parametrize("shape", large_bodies.SHAPES)
async def test_one_body(process, client, shape):
    await refuse(process, client, *large_bodies.body(shape, SIZE))


async def test_a_larger_body_is_not_read(process, client):
    before = process.peak()
    answer = await client.post(large_bodies.CHAT, content=b" " * (100 << 20))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert process.peak() < before + (16 << 20)
