"""CPU and memory of one gateway that relays many streams from a scripted worker.

    .venv/bin/python benchmarks/gateway/streams.py --streams 1000 --tokens 100

The gateway is pinned to one core and is a real process: HTTP, SSE, detokenizer, two WebSockets. Worker and clients are
processes on the other cores; they only keep it busy. Printed: gateway CPU per streamed token, tokens per second, RSS.
"""

import argparse
import asyncio
import time

import processes
from processes import COMPLETIONS, completion, cpu, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.05, help="seconds per step of the worker")
    parser.add_argument("--model", default=processes.MODEL)
    args = parser.parse_args()
    core = processes.pin_away()
    with (
        processes.worker("--pace", str(args.pace), "--model", args.model) as (_, addresses),
        processes.gateway(addresses, args.model, "--max-length", "100000", core=core) as (gateway, ports),
    ):
        asyncio.run(_load(args, gateway.pid, ports["http"]))


async def _load(args: argparse.Namespace, gateway: int, port: int) -> None:
    await _stream(port, 1)
    idle = memory(gateway)
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
    print(f"RSS: {idle >> 20} MiB before, {memory(gateway) >> 20} MiB after")


async def _stream(port: int, tokens: int) -> int:
    """One streamed completion over a plain socket; how many events came."""
    reader, writer = await processes.send(port, COMPLETIONS, completion(tokens))
    seen = bytearray()
    events = 0
    while data := await reader.read(65536):
        events += data.count(b"data: ")
        seen = (seen + data)[-64:]
    writer.close()
    assert b"[DONE]" in seen, bytes(seen)
    return events


if __name__ == "__main__":
    main()
