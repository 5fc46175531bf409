"""Measures the cost of large, useless request bodies: the gateway's answer, its memory, and another client's wait.

    PYTHONPATH=tests/support .venv/bin/python benchmarks/gateway/bodies.py --size 8300000

The gateway is a real process with a scripted worker behind it. While a body is sent and answered, another client asks
for one token after the other, each on a connection of its own. Printed for each shape: status, seconds until the
answer, the gateway's peak RSS from then on, and the longest that the other client waited for a first token.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import large_bodies

from legato_cli.models.model import resolve
from legato_gateway.testing.fake_worker import FakeWorker
from legato_protocol.model_files import model_digest

TOKEN = "benchmark"
HEADERS = "Host: gateway\r\nConnection: close\r\nContent-Type: application/json\r\n"
PATIENCE = 30.0  # seconds until a body or a client is given up
SMALL = json.dumps({"model": "m", "prompt": "Once upon a time", "max_tokens": 1, "stream": True}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8_300_000, help="bytes of each body (8300000)")
    parser.add_argument("--concurrency", type=int, default=1, help="of each shape (1)")
    parser.add_argument("--shape", action="append", default=[], help="only this one; may be given several times")
    parser.add_argument("--max-length", type=int, default=4096, help="the model's context (4096)")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--role", choices=("all", "worker"), default="all", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "worker":
        asyncio.run(_worker(args.model))
        return
    with tempfile.TemporaryDirectory() as folder:
        _measure(args, Path(folder))


async def _worker(model: str) -> None:
    digest = model_digest.digest(resolve(model, print))
    async with FakeWorker("u0", token=TOKEN, heartbeat=0.25, model=digest) as worker:
        print(worker.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def _measure(args: argparse.Namespace, folder: Path) -> None:
    command = [sys.executable, __file__, "--role", "worker", "--model", args.model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        address = worker.stdout.readline().strip()
        command = [sys.executable, "-m", "legato_cli.main", "gateway", "--port", "0", "--served-name", "m"]
        command += ["--worker", f"u0={address}", "--model", args.model, "--max-length", str(args.max_length)]
        for name in args.shape or large_bodies.SHAPES:
            path, body = large_bodies.body(name, args.size)
            announced = folder / name.replace("/", "-")
            environment = os.environ | {"LEGATO_TOKEN": TOKEN}
            with subprocess.Popen([*command, "--announce", str(announced)], env=environment) as gateway:
                try:
                    port = _port(announced, gateway)
                    figures = asyncio.run(_shape(gateway.pid, port, path, body, args.concurrency))
                    died = "" if gateway.poll() is None else "; THE GATEWAY DIED"
                    print(f"{name:40s} {figures}{died}", flush=True)
                finally:
                    gateway.kill()
        worker.communicate()


def _port(announced: Path, gateway: "subprocess.Popen[bytes]") -> int:
    """Returns the gateway's address, once it has announced it."""
    while not announced.exists():
        if gateway.poll() is not None:
            raise SystemExit(f"the gateway ended with {gateway.returncode}")
        time.sleep(0.02)
    port: int = json.loads(announced.read_text())["http"]
    return port


@dataclass
class Found:
    statuses: list[str]
    seconds: float
    before: int
    peak: int
    waits: list[float]

    def __str__(self) -> str:
        statuses = " ".join(sorted(set(self.statuses)))
        memory = f"RSS {self.before >> 20:4d} MiB, peak {self.peak >> 20:5d} MiB"
        return f"{statuses}  {self.seconds:7.2f} s  {memory}  others waited {max(self.waits):6.2f} s at most"


async def _shape(gateway: int, port: int, path: str, body: bytes, count: int) -> Found:
    while b"[DONE]" not in (await _post(port, "/v1/completions", SMALL))[0]:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.05)
    before = _memory(gateway, "VmRSS")
    _forget_peak(gateway)
    start = time.perf_counter()
    sent = [asyncio.create_task(_post(port, path, body)) for _ in range(count)]
    waits = [(await _post(port, "/v1/completions", SMALL))[1]]
    while not all(task.done() for task in sent):
        waits.append((await _post(port, "/v1/completions", SMALL))[1])
    answers = [await task for task in sent]
    statuses = [answer[9:12].decode() or "no answer" for answer, _ in answers]
    return Found(statuses, time.perf_counter() - start, before, _memory(gateway, "VmHWM"), waits)


async def _post(port: int, path: str, body: bytes) -> tuple[bytes, float]:
    """The first 64 kB of the answer, and seconds until it began; nothing if it did not come."""
    start = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"POST {path} HTTP/1.1\r\n{HEADERS}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read(65536)
            passed = time.perf_counter() - start
            while data := await reader.read(65536):
                answer = (answer + data)[:65536]
    except (OSError, TimeoutError):
        return b"", time.perf_counter() - start
    writer.close()
    return answer, passed


def _forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _memory(pid: int, field: str) -> int:
    """Bytes; 0 of a process that ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field)), 0)


if __name__ == "__main__":
    main()
