"""Measures what clients notice when a worker is killed: failed streams, and the longest pause of those that moved.

    legato up -f benchmarks/manifests/failover.yaml --port 8080
    python benchmarks/service/failover.py http://127.0.0.1:8080 --kills 10

In each round, `--streams` streams run on two decode workers; once one of them has half of its tokens, one decode worker
is killed (SIGKILL), each in every second round. The next round begins when the operator has replaced it. "Moved" are
streams that the gateway dispatched a second time. Only local processes can be killed: it finds them by the worker's
name in /proc.
"""

import argparse
import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import httpx

from legato_cli.bench import client, workload
from legato_cli.bench.client import Record
from legato_cli.services import state
from legato_cli.ui import sources

PATIENCE = 120.0  # seconds for a worker to be replaced
POLL = 0.05  # seconds between polls


async def gateway_state() -> dict[str, Any]:
    """Returns the state of the service's only gateway."""
    (only,) = await state.read(sources.source(None, None))
    return only


async def ready_workers() -> list[str]:
    """Waits for two decode workers and returns their names. Raises TimeoutError."""
    async with asyncio.timeout(PATIENCE):
        while True:
            workers = (await gateway_state())["workers"]
            names = [w["worker"] for w in workers if w.get("role") == "decode" and w["connection"] == "connected"]
            if len(names) == 2:
                return sorted(names)
            await asyncio.sleep(POLL)


def kill(worker: str) -> None:
    """Kills a worker's server process; its core ends with it."""
    for folder in Path("/proc").glob("[0-9]*"):
        words = (folder / "cmdline").read_bytes().split(b"\0") if (folder / "cmdline").exists() else []
        if b"worker" in words and worker.encode() in words:
            os.kill(int(folder.name), signal.SIGKILL)
            return
    raise SystemExit(f"no process of worker {worker} on this machine")


async def one_round(http: httpx.AsyncClient, model: str, args: argparse.Namespace, number: int) -> list[Record]:
    """Returns the records of the streams during which one worker was killed."""
    victim = (await ready_workers())[number % 2]
    seed = random.SystemRandom().getrandbits(32)  # no prompt may be cached by an earlier run
    shapes = workload.fixed(args.streams, args.input_tokens, args.output_tokens, workload.TokenRange(), seed)
    streams = [asyncio.ensure_future(client.complete(http, model, request)) for request in shapes]
    await _until_half(args)
    kill(victim)
    return list(await asyncio.gather(*streams))


async def _until_half(args: argparse.Namespace) -> None:
    """Waits until a running stream has half of its tokens."""
    async with asyncio.timeout(PATIENCE):
        while True:
            running = [r["output_tokens"] for r in (await gateway_state())["requests"] if r["stage"] != "ended"]
            if 2 * max(running, default=0) >= args.output_tokens:
                return
            await asyncio.sleep(POLL)


async def measure(args: argparse.Namespace) -> None:
    """Prints one row over all rounds."""
    records: list[Record] = []
    async with httpx.AsyncClient(base_url=args.url, timeout=600) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        for number in range(args.kills):
            records += await one_round(http, model, args, number)
        requests = (await gateway_state())["requests"]
    moved = {request["id"] for request in requests if request["attempt"] > 1}
    pauses = sorted(max(record.gaps) for record in records if record.id in moved and record.gaps)
    failed = [record.error for record in records if record.error]
    print("| streams | moved | failed | pause p50, s | max, s |\n| --- | --- | --- | --- | --- |")
    print(f"| {len(records)} | {len(pauses)} | {len(failed)} | {pauses[len(pauses) // 2]:.2f} | {pauses[-1]:.2f} |")
    for error in failed:
        print(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=200)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
