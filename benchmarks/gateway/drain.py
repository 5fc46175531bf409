"""CPU of one gateway while a worker of a large fleet drains: first with no room elsewhere, then with room.

    .venv/bin/python benchmarks/gateway/drain.py --workers 100 --streams 1000 --drained 256

Workers are scripted and share one process; the gateway is a real process pinned to one core. `--drained` streams run on
one worker, the others are spread. Printed: the gateway's CPU in per cent of a core and per token, while all stream,
while the worker drains and nobody has room for its sequences, and while these are handed to workers that have.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time

import processes
from processes import COMPLETIONS, completion, cpu

from legato_gateway.testing.fake_engine import Fabric
from legato_gateway.testing.fake_worker import FakeWorker, FakeWorkerOptions

MANY = 10_000  # sequences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--drained", type=int, default=256)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds per step of a worker")
    parser.add_argument("--heartbeat", type=float, default=0.05, help="seconds between a worker's load reports")
    parser.add_argument("--window", type=float, default=8.0, help="seconds of each measurement")
    parser.add_argument("--model", default=processes.MODEL)
    parser.add_argument("--source", help="PYTHONPATH of the gateway, to measure another checkout")
    parser.add_argument("--role", choices=("all", "workers"), default="all", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "workers":
        asyncio.run(_workers(args))
        return
    core, options = processes.pin_away(), ("pace", "model", "workers", "heartbeat")
    own = ("--role", "workers", *(f"--{name}={getattr(args, name)}" for name in options))
    with (
        processes.scripted(__file__, *own) as (workers, addresses),
        processes.gateway(addresses, args.model, "--max-length", "100000", core=core, source=args.source or "") as (
            gateway,
            ports,
        ),
    ):
        asyncio.run(_measure(args, Script(workers), gateway.pid, ports["http"]))


async def _workers(args: argparse.Namespace) -> None:
    """Runs all workers. Each line read is a stage of the script: `spread`, `full`, `drain`, `room`."""
    digest, fabric = processes.digest_of(args.model), Fabric()
    options = FakeWorkerOptions(processes.TOKEN, args.pace, args.heartbeat, MANY, processes.word, digest)
    first, *others = workers = [FakeWorker(f"u{i}", fabric=fabric, options=options) for i in range(args.workers)]
    for worker in others:
        worker.credits = 0
    async with contextlib.AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker)
        print(" ".join(worker.address for worker in workers), flush=True)
        while command := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if command == "spread":
                first.credits = 0
                for worker in others:
                    worker.credits = MANY
            elif command in ("full", "room"):
                for worker in others:
                    worker.full = command == "full"
            elif command == "drain":
                await first.drain()
            elif command == "left":
                print(len(first.engine.jobs), flush=True)


class Script:
    """The fake workers' settings."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def say(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def left(self) -> int:
        """Sequences at the worker that drains."""
        self.say("left")
        return int(self.read())


class Clients:
    """Streams that are read until the end of the measurement; `events` are the tokens they received."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self.started = self.events = 0

    async def start(self, count: int) -> None:
        """Returns once all of `count` more stream."""
        wanted = len(self._tasks) + count
        self._tasks += [asyncio.create_task(self._read()) for _ in range(count)]
        while self.started < wanted:
            failed = [task for task in self._tasks if task.done()]
            assert not failed, failed[0]
            await asyncio.sleep(0.05)

    async def _read(self) -> None:
        reader, writer = await processes.send(self._port, COMPLETIONS, completion(50_000))
        try:
            first = True
            while data := await reader.read(65536):
                count = data.count(b"data: ")
                self.events += count
                if first and count:
                    first = False
                    self.started += 1
                assert b"event: error" not in data, data[-300:]
        finally:
            writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _measure(args: argparse.Namespace, script: Script, gateway: int, port: int) -> None:
    clients = Clients(port)
    await asyncio.sleep(1.0)  # until all workers have greeted
    await clients.start(args.drained)
    script.say("spread")
    await asyncio.sleep(1.0)
    await clients.start(args.streams - args.drained)
    print(f"{args.workers} workers, {args.streams} streams, {script.left()} on the one that drains")
    await _window("all stream", args.window, gateway, clients)
    script.say("full")
    await asyncio.sleep(1.0)
    script.say("drain")
    await _window("it drains, no room", args.window, gateway, clients)
    script.say("room")
    await _window("it drains, room", args.window, gateway, clients)
    print(f"left on it: {script.left()}")
    await clients.stop()


async def _window(name: str, seconds: float, gateway: int, clients: Clients) -> None:
    spent, events, start = cpu(gateway), clients.events, time.perf_counter()
    await asyncio.sleep(seconds)
    spent, events, passed = cpu(gateway) - spent, clients.events - events, time.perf_counter() - start
    print(
        f"{name}: {100 * spent / passed:.0f} % of a core, {events / passed:,.0f} tokens/s, "
        f"{1e6 * spent / max(events, 1):.1f} µs per token",
        flush=True,
    )


if __name__ == "__main__":
    main()
