"""Measures chats of several turns with fetches of cached KV and without: time to the first token, prefilled tokens.

    python benchmarks/service/multi_turn.py -f benchmarks/manifests/multi-turn.yaml --rounds 2
    python benchmarks/service/multi_turn.py --profile PATH  # paced, as in manifests/multi-turn-profile.json

Starts `legato up` with each value of `routing.kvSharing`. Each conversation sends its next turn, the
history as it was generated and `--new` random tokens, once the answer to the last one has ended. Without fetching, the
prefill worker computes the last answer again, of which the decode worker has the KV. "prefilled" are the tokens of the
prompt that were not cached where it was computed, fetched ones included in the cache.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import yaml

SHARING = ("Off", "Auto")
TOKENS = (100, 40000)


@dataclass(frozen=True)
class Turn:
    """A turn's number (from 0), seconds to the first token, prefilled tokens, and the reason for its route."""

    number: int
    ttft: float
    prefilled: int
    why: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-f", "--file", default="benchmarks/manifests/multi-turn.yaml")
    parser.add_argument("--conversations", type=int, default=16)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--new", type=int, default=300, help="tokens that each turn adds to the history")
    parser.add_argument("--answer", type=int, default=300, help="tokens of each answer")
    parser.add_argument(
        "--think", type=float, default=0.0, help="seconds between an answer and the next turn, on average"
    )
    parser.add_argument("--profile", help="of paced workers, which take its times; default: the model computes")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show-routes", type=int, default=0, help="print this many routes of later turns")
    args = parser.parse_args()
    print("| kvSharing | TTFT of later turns: p50, ms | p90 | mean | prefilled tokens of later turns: p50 | most |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    of = {sharing: list[Turn]() for sharing in SHARING}
    for number in range(args.rounds):
        for sharing in SHARING if number % 2 == 0 else reversed(SHARING):
            with service(Path(args.file), sharing, args.profile) as url:
                turns = asyncio.run(converse(url, args, args.seed + number))
            print(row(sharing, turns), flush=True)
            for turn in [turn for turn in turns if turn.number][: args.show_routes]:
                print(f"    {turn.why}")
            of[sharing] += turns
    off, auto = (statistics.median(later(of[sharing], "ttft")) for sharing in SHARING)
    print(f"\nTTFT p50 from the second turn on: {off / auto:.2f} x lower with fetching")


@contextmanager
def service(manifest: Path, sharing: str, profile: str | None) -> Iterator[str]:
    """The URL of a service of this manifest, which ends with the context."""
    spec = yaml.safe_load(manifest.read_text())
    spec["spec"].setdefault("routing", {})["kvSharing"] = sharing
    if profile:
        spec["spec"]["engine"] |= {"runner": "Paced", "profile": profile}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(spec, file)
        file.flush()
        command = [sys.executable, "-m", "legato_cli.main", "up", "-f", file.name, "--port", str(port)]
        up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert up.stdout is not None
        try:
            said = list(takewhile(lambda line: not line.startswith("Ready: "), up.stdout))
            if up.poll() is not None:
                raise SystemExit("".join(said[-3:]))
            reader = Thread(target=up.stdout.read)  # so that its log never fills the pipe
            reader.start()
            yield f"http://127.0.0.1:{port}"
        finally:
            up.send_signal(signal.SIGINT)
            up.wait()


async def converse(url: str, args: argparse.Namespace, seed: int) -> list[Turn]:
    """The turns of all conversations, which run concurrently."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=3600, limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        draw = random.Random(seed)
        await conversation(http, model, args, random.Random(draw.random()), turns=2)  # warms up
        draws = [random.Random(draw.random()) for _ in range(args.conversations)]
        chats = [conversation(http, model, args, each, args.turns) for each in draws]
        return [turn for turns in await asyncio.gather(*chats) for turn in turns]


async def conversation(
    http: httpx.AsyncClient, model: str, args: argparse.Namespace, draw: random.Random, turns: int
) -> list[Turn]:
    """The turns of one conversation, one after the other."""
    tokens, taken = list[int](), list[Turn]()
    for number in range(turns):
        if args.think:
            await asyncio.sleep(draw.expovariate(1 / args.think))
        tokens += [draw.randrange(*TOKENS) for _ in range(args.new)]
        answer, turn = await ask(http, model, args.answer, tokens, number)
        tokens += answer
        taken.append(turn)
    return taken


async def ask(http: httpx.AsyncClient, model: str, most: int, prompt: list[int], number: int) -> tuple[list[int], Turn]:
    """The answer's tokens, and the turn's figures."""
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": most, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    began, ttft, answer, usage = time.perf_counter(), 0.0, list[int](), dict[str, Any]()
    headers = {"x-legato-explain": "true"}
    async with http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
        if response.status_code != 200:
            raise SystemExit((await response.aread()).decode())
        why = response.headers.get("x-legato-route", "")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise SystemExit(f"a turn failed: {event['error']}")
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                if (ids := choice.get("token_ids")) and not answer:
                    ttft = time.perf_counter() - began
                answer += ids or ()
    if len(answer) != most:
        raise SystemExit(f"{len(answer)} of {most} tokens came")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return answer, Turn(number, ttft, usage["prompt_tokens"] - cached, why)


def later(turns: list[Turn], figure: str) -> list[float]:
    """A figure of every turn but the first ones, in order."""
    return sorted(getattr(turn, figure) for turn in turns if turn.number)


def row(sharing: str, turns: list[Turn]) -> str:
    times, prefilled = later(turns, "ttft"), later(turns, "prefilled")
    p50, p90, mean = statistics.median(times), times[int(0.9 * len(times))], statistics.fmean(times)
    figures = (f"{1e3 * each:.0f}" for each in (p50, p90, mean))
    return f"| {sharing} | {' | '.join(figures)} | {statistics.median(prefilled):.0f} | {prefilled[-1]:.0f} |"


if __name__ == "__main__":
    main()
