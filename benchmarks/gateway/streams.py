"""CPU and memory of one gateway: per streamed token, per short request, and per turn of a long chat.

    .venv/bin/python benchmarks/gateway/streams.py --streams 1000 --tokens 100
    .venv/bin/python benchmarks/gateway/streams.py --streams 0 --requests 2000 --chats 5 --source ../other --source .

The gateway is pinned to one core and is a real process: HTTP, SSE, tokenizer, two WebSockets. Worker and clients are on
the other cores; they only keep it busy. Printed: CPU of the gateway and its processes, and RSS. With
`--source`, gateways of several checkouts are measured one after the other, `--rounds` times.
"""

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import processes
import psutil
from processes import COMPLETIONS, completion, cpu, memory

CHATS = "/v1/chat/completions"
PACKAGES = ["cli", "engine", "gateway", "grammar", "operator", "protocol", "simulator", "telemetry"]
ANSWER = 8  # tokens
CLIENTS = 16  # of short requests, each with one connection
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--requests", type=int, default=0, help="short chats, not streamed")
    parser.add_argument("--chats", type=int, default=0, help="long chats")
    parser.add_argument(
        "--words", type=int, default=51_000, help="of the documentation in the first message of a long chat"
    )
    parser.add_argument("--turns", type=int, default=4, help="of a long chat")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--source", action="append", default=[], help="a checkout; may be given several times")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds per step of the worker")
    parser.add_argument("--model", default=processes.MODEL)
    args = parser.parse_args()
    core = processes.pin_away()
    with processes.worker("--pace", str(args.pace), "--model", args.model) as (_, addresses):
        for source in (args.source or [""]) * args.rounds:
            print(source)
            path = ":".join(str(Path(source, package).resolve()) for package in PACKAGES) if source else ""
            options = ("--max-length", "1000000")
            with processes.gateway(addresses, args.model, *options, core=core, source=path) as (gateway, ports):
                asyncio.run(_measure(args, gateway.pid, ports["http"]))


async def _measure(args: argparse.Namespace, gateway: int, port: int) -> None:
    await processes.until_served(port)
    if args.streams:
        await _load(args, gateway, port)
    if args.requests:
        await _short_requests(args.requests, gateway, port)
    if args.chats:
        await _long_chats(args, gateway, port)


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


async def _short_requests(count: int, gateway: int, port: int) -> None:
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS)]
    numbers = iter(range(count))

    async def ask(connection: Connection) -> None:
        for number in numbers:
            await _chat(connection, [{"role": "user", "content": f"Say {number}."}])

    before = cpu(gateway)
    await asyncio.gather(*map(ask, connections))
    spent = cpu(gateway) - before
    print(f"short requests: {count / spent:,.0f} per CPU second, {1e3 * spent / count:.2f} ms each")


async def _long_chats(args: argparse.Namespace, gateway: int, port: int) -> None:
    rng, connection = random.Random(0), await asyncio.open_connection("127.0.0.1", port)
    docs = sorted(Path(__file__).parents[2].glob("docs/*.md"))
    words = [word for page in docs for word in page.read_text().split()]
    first, later, tokens = 0.0, 0.0, 0
    for _ in range(args.chats):
        messages = [{"role": "user", "content": " ".join(rng.choices(words, k=args.words))}]
        for turn in range(args.turns):
            before = _with_children(gateway)
            tokens = (await _chat(connection, messages))["usage"]["prompt_tokens"]
            spent = _with_children(gateway) - before
            first, later = (first, later + spent) if turn else (first + spent, later)
            said = [{"role": role, "content": " ".join(rng.choices(words, k=50))} for role in ("assistant", "user")]
            messages = messages + said
    turns = args.chats * max(1, args.turns - 1)
    per = f"first turn {1e3 * first / args.chats:.0f} ms, next turns {1e3 * later / turns:.1f} ms"
    print(f"long chats of {tokens} tokens: {per} of CPU; RSS of all processes {_memory(gateway)} MiB")


async def _chat(connection: Connection, messages: list[dict[str, str]]) -> dict[str, Any]:
    """The answer to one chat on an open connection."""
    reader, writer = connection
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": ANSWER}).encode()
    head = f"POST {CHATS} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))
    answer: dict[str, Any] = json.loads(await reader.readexactly(length))
    assert b" 200 " in lines[0], answer
    return answer


def _with_children(pid: int) -> float:
    """CPU seconds of a process and of those that it started."""
    return cpu(pid) + sum(cpu(child.pid) for child in psutil.Process(pid).children())


def _memory(pid: int) -> list[int]:
    return [memory(each) >> 20 for each in (pid, *(child.pid for child in psutil.Process(pid).children()))]


if __name__ == "__main__":
    main()
