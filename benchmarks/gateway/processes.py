"""Processes of a benchmark: gateways with scripted workers behind them, their requests, and their use of resources.

Run as a program, this is one scripted worker, which prints its address.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from legato_cli.models.model import resolve
from legato_gateway.testing.fake_engine import token_at
from legato_gateway.testing.fake_worker import FakeWorker, FakeWorkerOptions
from legato_protocol import names
from legato_protocol.model_files import model_digest

TOKEN = "benchmark"
MODEL = "builtin:smollm2-135m-instruct"
COMPLETIONS = "/v1/completions"
PATIENCE = 30.0  # seconds until a request or a stopping process is abandoned
HEADERS = "Host: gateway\r\nConnection: close\r\nContent-Type: application/json\r\n"
Started = AbstractContextManager[tuple["subprocess.Popen[bytes]", dict[str, int]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--pace", type=float, default=0.001, help="seconds per step")
    args = parser.parse_args()
    asyncio.run(_work(args.model, args.pace))


async def _work(model: str, pace: float) -> None:
    digest = digest_of(model)
    options = FakeWorkerOptions(TOKEN, pace, heartbeat=0.25, tokens=word, model=digest)
    async with FakeWorker("u0", options=options) as worker:
        print(worker.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def digest_of(model: str) -> str:
    return model_digest.digest(resolve(model, print))


def word(seed: int, choice: int, index: int) -> int:
    """Ordinary tokens: whole words, no special ones and no pieces of characters."""
    return 1000 + token_at(seed, choice, index, 20_000)


@contextlib.contextmanager
def scripted(program: str, *options: str) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """A process of scripted workers, which ends with its standard input, and their addresses."""
    command = [sys.executable, program, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()


def worker(*options: str) -> AbstractContextManager[tuple["subprocess.Popen[str]", list[str]]]:
    """The process and the address of one scripted worker."""
    return scripted(__file__, *options)


def gateway(addresses: Sequence[str], model: str, *options: str, core: str = "", source: str = "") -> Started:
    """A gateway and its ports; on one core, and of another checkout's `source`, if given."""
    workers = (option for number, address in enumerate(addresses) for option in ("--worker", f"u{number}={address}"))
    options = ("--port", "0", "--served-name", "m", "--model", model, *workers, *options)
    return legato("gateway", *options, core=core, environment={"PYTHONPATH": source} if source else {})


@contextlib.contextmanager
def legato(
    command: str, *options: str, core: str = "", environment: Mapping[str, str] = {}
) -> Iterator[tuple["subprocess.Popen[bytes]", dict[str, int]]]:
    """A process of Legato and the ports that it announced. What it printed is shown if it ends by itself."""
    with tempfile.TemporaryDirectory() as folder:
        announced, log = Path(folder, "announced"), Path(folder, "log")
        line = [*(("taskset", "-c", core) if core else ()), sys.executable, "-m", "legato_cli.main", command, *options]
        with log.open("wb") as out:
            settings = os.environ | {names.ENV_TOKEN: TOKEN, **environment}
            process = subprocess.Popen([*line, "--announce", str(announced)], env=settings, stdout=out, stderr=out)
        try:
            while not announced.exists():
                if process.poll() is not None:
                    raise SystemExit(f"legato {command} ended with {process.returncode}")
                time.sleep(0.02)
            yield process, json.loads(announced.read_text())
        finally:
            if process.poll() is not None:
                print(log.read_text()[-2000:], file=sys.stderr)
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def pin_away() -> str:
    """Leaves the first core to a gateway, and returns its number."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)
    return str(cores[0])


def completion(tokens: int) -> bytes:
    """The body of a streamed completion."""
    return json.dumps({"model": "m", "prompt": "Once upon a time", "max_tokens": tokens, "stream": True}).encode()


async def send(port: int, path: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends a request over a plain socket of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {path} HTTP/1.1\r\n{HEADERS}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


async def post(port: int, path: str, body: bytes) -> tuple[bytes, float]:
    """The first 64 kB of the answer, and seconds until it began; nothing if it did not come."""
    start = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await send(port, path, body)
            answer = await reader.read(65536)
            passed = time.perf_counter() - start
            while data := await reader.read(65536):
                answer = (answer + data)[:65536]
    except (OSError, TimeoutError):
        return b"", time.perf_counter() - start
    writer.close()
    return answer, passed


async def until_served(port: int) -> None:
    while b"[DONE]" not in (await post(port, COMPLETIONS, completion(1)))[0]:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.05)


def cpu(pid: int) -> float:
    """Seconds that a process has computed."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def memory(pid: int, field: str = "VmRSS") -> int:
    """Bytes; 0 of a process that ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(field)), 0)


def forget_peak(pid: int) -> None:
    """Lets VmHWM begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
