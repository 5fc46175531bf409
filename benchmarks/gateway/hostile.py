"""Measures the cost of hostile clients: the gateway's memory, and the wait of normal clients.

    PYTHONPATH=tests/support .venv/bin/python benchmarks/gateway/hostile.py

The gateway is a real process on the first core, with a scripted worker behind it; all clients run on the second. One
after the other, a normal client asks for one token on connections of its own: first undisturbed, then alongside silent
connections, connections that send a head byte by byte, and bodies that stop before their last byte, all together; then
alongside as many bodies that are expensive to read, sent whole, again and again. Hostile clients are processes of their
own; the normal one and the worker run before anything else on that core, where that is allowed (SCHED_RR), so that the
waits measured are the gateway's. Printed: p50, p90 and p99 of the time to the first token, requests that were not
answered, memory of all processes of the gateway, and what became of the hostile connections.
"""

import argparse
import asyncio
import itertools
import os
import re
import sys
import time
from collections import Counter
from contextlib import suppress

import large_bodies
import processes
import psutil
from processes import COMPLETIONS, completion, post

WHOLE = 8 << 20
SHAPES = (
    "prompt of valid ids",
    "prompt of one-token lists",
    "prompt of one text",
    "messages with one part",
    "messages of {}",
    "tools of functions",
    "stop of strings",
    "the same key",
)
PAUSE = 1.0  # seconds after which a client sends the next body
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silent", type=int, default=500, help="connections that send nothing (500)")
    parser.add_argument("--slow", type=int, default=500, help="connections that send a head byte by byte (500)")
    parser.add_argument("--bodies", type=int, default=50, help="concurrent bodies of 8 MiB (50)")
    parser.add_argument("--requests", type=int, default=500, help="normal requests in each phase (500)")
    parser.add_argument("--last", type=float, default=45.0, help="seconds that the second phase takes at least (45)")
    parser.add_argument("--model", default=processes.MODEL)
    parser.add_argument("--role", choices=("all", "clients", "bodies"), default="all", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role != "all":
        os.nice(5)
        asyncio.run(_clients(args) if args.role == "clients" else _whole_bodies(args))
        return
    os.sched_setaffinity(0, {1})
    options = ("--max-length", "4096", "--access-log", "Off")
    with (
        processes.worker("--model", args.model) as (worker, addresses),
        processes.gateway(addresses, args.model, *options, core="0") as (gateway, ports),
    ):
        for pid in (os.getpid(), worker.pid):
            _put_first(pid)
        asyncio.run(_phases(args, gateway.pid, ports["http"]))


def _put_first(pid: int) -> None:
    with suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


async def _phases(args: argparse.Namespace, gateway: int, port: int) -> None:
    await processes.until_served(port)
    results = {"undisturbed": await _normal(port, args.requests, 0.0)}
    for role, last in {"clients": args.last, "bodies": 0.0}.items():
        before = _together(gateway)
        processes.forget_peak(gateway)
        sampling = asyncio.create_task(_most_memory(gateway))
        results[role] = await _disturbed(args, role, port, last)
        sampling.cancel()
        peak = f"gateway's own RSS at its peak {processes.memory(gateway, 'VmHWM') >> 20} MiB"
        print(f"{role}: memory {before >> 20} MiB, at most {max(await sampling, before) >> 20} MiB; {peak}", flush=True)
    for role, (waits, failed) in results.items():
        p50, p90, p99 = (1e3 * waits[int(share * (len(waits) - 1))] for share in (0.5, 0.9, 0.99))
        line = f"{role:12s} TTFT p50 {p50:6.1f}, p90 {p90:6.1f}, p99 {p99:6.1f}, longest {1e3 * waits[-1]:6.1f} ms"
        print(f"{line}; {failed} of {len(waits)} not answered")


async def _disturbed(args: argparse.Namespace, role: str, port: int, last: float) -> tuple[list[float], int]:
    """Sends normal requests while a process of hostile clients runs."""
    own = [f"--{name}={getattr(args, name)}" for name in ("silent", "slow", "bodies")]
    clients = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--role", role, f"--port={port}", *own, stdin=-1, stdout=-1
    )
    assert clients.stdin
    assert clients.stdout
    await clients.stdout.readline()  # all are connected
    results = await _normal(port, args.requests, last)
    clients.stdin.close()
    print((await clients.stdout.read()).decode().strip())
    await clients.wait()
    return results


async def _most_memory(gateway: int) -> int:
    """The most that `_together` gave until cancelled."""
    most = 0
    with suppress(asyncio.CancelledError):
        while True:
            most = max(most, await asyncio.to_thread(_together, gateway))
            await asyncio.sleep(0.5)
    return most


def _together(gateway: int) -> int:
    """Bytes of a gateway and of the processes that it has now; a page that several share counts once."""
    total = 0
    for process in [psutil.Process(gateway), *psutil.Process(gateway).children(recursive=True)]:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


async def _normal(port: int, count: int, last: float) -> tuple[list[float], int]:
    """Seconds to the first token of each request, sorted, and how many had none."""
    waits, failed, start = [], 0, time.perf_counter()
    while len(waits) < count or time.perf_counter() - start < last:
        answer, seconds = await post(port, COMPLETIONS, completion(1))
        waits.append(seconds)
        failed += b"[DONE]" not in answer
        await asyncio.sleep(0.02)
    return sorted(waits), failed


async def _whole_bodies(args: argparse.Namespace) -> None:
    """Sends bodies, that many at a time, until standard input ends."""
    results: Counter[str] = Counter()
    bodies = [large_bodies.body(shape, WHOLE - 300_000) for shape in SHAPES]

    async def client(first: int) -> None:
        for path, body in itertools.cycle(bodies[first % len(bodies) :] + bodies[: first % len(bodies)]):
            answer, _ = await post(args.port, path, body)
            results[answer[9:12].decode() or "no answer"] += 1
            await asyncio.sleep(PAUSE)

    tasks = [asyncio.create_task(client(number)) for number in range(args.bodies)]
    while not results:  # noqa: ASYNC110 - the first answer is waited for, whoever gets it
        await asyncio.sleep(0.01)
    print("sending", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    print(f"bodies sent whole: {dict(results)}")


async def _clients(args: argparse.Namespace) -> None:
    """Connects and stays until standard input ends, or until it is closed."""
    start = time.perf_counter()
    kinds = ["silent"] * args.silent + ["slow"] * args.slow + ["body"] * args.bodies
    connected = asyncio.Semaphore(0)
    ended: dict[str, list[tuple[str, float]]] = {"silent": [], "slow": [], "body": []}

    async def client(kind: str) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", args.port)
        except OSError:
            ended[kind].append(("not connected", 0.0))
            connected.release()
            return
        sending = asyncio.create_task(_send(kind, writer))
        connected.release()
        answer = b""
        with suppress(OSError):
            answer = await reader.read(4096)
        status = re.match(rb"HTTP/1.1 (\d+)", answer)
        ended[kind].append((status[1].decode() if status else "closed", time.perf_counter() - start))
        sending.cancel()
        writer.close()

    tasks = [asyncio.create_task(client(kind)) for kind in kinds]
    for _ in kinds:
        await connected.acquire()
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for kind, results in ended.items():
        what = dict(Counter(status for status, _ in results))
        last = max((seconds for _, seconds in results), default=0.0)
        print(f"{kind}: {len(results)} of {kinds.count(kind)} ended: {what}, the last after {last:.0f} s")
    for task in tasks:
        task.cancel()


async def _send(kind: str, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        if kind == "body":
            writer.write(HEAD % WHOLE + b" " * (WHOLE - 1))
            await writer.drain()
        while kind == "slow":
            for byte in HEAD + b"x" * 1000:
                writer.write(bytes([byte]))
                await asyncio.sleep(1.0)


if __name__ == "__main__":
    main()
