"""CPU and memory of one gateway that relays many streams from a scripted worker.

    .venv/bin/python benchmarks/gateway/streams.py --streams 1000 --tokens 100

The gateway is pinned to one core and is a real process: HTTP, SSE, detokenizer, two WebSockets. Worker and clients are
processes on the other cores; they only keep it busy. Printed: gateway CPU per streamed token, tokens per second, RSS.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from legato_cli.models.model import resolve
from legato_gateway.testing.fake_engine import token_at
from legato_gateway.testing.fake_worker import FakeWorker
from legato_protocol.model_files import model_digest

TICKS = os.sysconf("SC_CLK_TCK")
TOKEN = "benchmark"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds per step of the worker")
    parser.add_argument("--model", default="builtin:smollm2-135m-instruct")
    parser.add_argument("--role", choices=("all", "worker"), default="all", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "worker":
        asyncio.run(_worker(args.pace, args.model))
        return
    pin_away()
    with tempfile.TemporaryDirectory() as folder:
        _measure(args, Path(folder))


def pin_away() -> None:
    """Leaves the first core to the gateway."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[1:] or cores)


def word(seed: int, choice: int, index: int) -> int:
    """Ordinary tokens: whole words, no special ones and no pieces of characters."""
    return 1000 + token_at(seed, choice, index, 20_000)


async def _worker(pace: float, model: str) -> None:
    digest = model_digest.digest(resolve(model, print))
    async with FakeWorker("u0", token=TOKEN, pace=pace, heartbeat=0.25, tokens=word, model=digest) as worker:
        print(worker.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def _measure(args: argparse.Namespace, folder: Path) -> None:
    core = str(min(os.sched_getaffinity(os.getppid())))
    command = [sys.executable, __file__, "--role", "worker", "--pace", str(args.pace), "--model", args.model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        address = worker.stdout.readline().strip()
        announced = folder / "announced"
        command = ["taskset", "-c", core, sys.executable, "-m", "legato_cli.main", "gateway", "--port", "0"]
        command += ["--announce", str(announced), "--worker", f"u0={address}", "--model", args.model]
        command += ["--served-name", "m", "--max-length", "100000"]
        with subprocess.Popen(command, env=os.environ | {"LEGATO_TOKEN": TOKEN}) as gateway:
            try:
                port = port_of(announced, gateway)
                asyncio.run(_load(args, gateway.pid, port))
            finally:
                gateway.terminate()
        worker.communicate()


def port_of(announced: Path, gateway: "subprocess.Popen[bytes]") -> int:
    """Returns the gateway's address, once it has announced it."""
    while not announced.exists():
        if gateway.poll() is not None:
            raise SystemExit(f"the gateway ended with {gateway.returncode}")
        time.sleep(0.05)
    port: int = json.loads(announced.read_text())["http"]
    return port


async def _load(args: argparse.Namespace, gateway: int, port: int) -> None:
    await _stream(port, 1)
    idle = _rss(gateway)
    before, start = cpu(gateway), time.perf_counter()
    counts = await asyncio.gather(*(_stream(port, args.tokens) for _ in range(args.streams)))
    spent, passed = cpu(gateway) - before, time.perf_counter() - start
    events = sum(counts)
    tokens = args.streams * args.tokens
    print(f"{args.streams} streams of {args.tokens} tokens in {passed:.1f} s: {tokens / passed:,.0f} tokens/s")
    print(f"{events} SSE events reached the clients")
    print(
        f"gateway: {spent:.2f} s CPU, {100 * spent / passed:.0f} % of a core, {1e6 * spent / tokens:.1f} µs per token"
    )
    print(f"RSS: {idle >> 20} MiB before, {_rss(gateway) >> 20} MiB after")


async def write_request(port: int, tokens: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Asks for one streamed completion over a plain socket."""
    body = {"model": "m", "prompt": "Once upon a time", "max_tokens": tokens, "stream": True}
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    return reader, writer


async def _stream(port: int, tokens: int) -> int:
    """One streamed completion over a plain socket; how many events came."""
    reader, writer = await write_request(port, tokens)
    seen = bytearray()
    events = 0
    while data := await reader.read(65536):
        events += data.count(b"data: ")
        seen = (seen + data)[-64:]
    writer.close()
    assert b"[DONE]" in seen, bytes(seen)
    return events


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
