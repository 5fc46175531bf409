"""Runs a service with KV tiers for a long time, and samples memory, descriptors and blocks of its processes.

    python benchmarks/service/tier_soak.py -f MANIFEST --minutes 60 > rows.txt

The manifest has `engine.hostKVMemory` and perhaps `engine.diskKV`, and tiers that are too small for `--documents`.
Prompts ask about one of these, in a random order, `--rate` a second; every tenth client leaves early, and every
third one asks again with the answer in its prompt. Answers to equal prompts that differ are counted: without float32,
sums of another order may choose another token. At each sample, requests pause until no worker uses a block. Then, free
and cached blocks must be all blocks, and files those that the disk tier counts.
"""

import argparse
import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psutil
import yaml

TOKENS = (100, 40000)
QUESTION = 16  # tokens
PATIENCE = 600.0  # seconds until no worker uses a block; other programs may take the cores
BLOCKS = ("free", "cached", "used", "quarantined")
COUNTS = ("blocks", "saved_blocks", "restored_blocks", "evicted_blocks", "errors")
TIERS = [(tier, what) for tier in ("host", "disk") for what in COUNTS]


class Load:
    """Requests at random times, and the answers that came."""

    def __init__(self, http: httpx.AsyncClient, model: str, args: argparse.Namespace) -> None:
        self._http, self._model = http, model
        self._draw = random.Random(args.seed)
        self._documents = [self._text(args.tokens) for _ in range(args.documents)]
        self._answers: dict[tuple[int, ...], list[int]] = {}
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float, rate: float) -> None:
        """Sends requests for this long, and waits for their ends."""
        ends = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic()) < ends:
                group.create_task(self._chat(self._draw.choice(self._documents), self._draw.random()))
                await asyncio.sleep(min(self._draw.expovariate(rate), ends - now))

    async def _chat(self, document: list[int], kind: float) -> None:
        prompt = [*document, *document[:QUESTION]]
        answer = await self._ask(prompt, leaves=kind < 0.1)
        if kind > 0.67:
            await self._ask([*prompt, *answer, *document[:QUESTION]])

    async def _ask(self, prompt: list[int], leaves: bool = False) -> list[int]:
        """The answer's tokens, as far as they came."""
        answer = list[int]()
        try:
            await self._stream(prompt, answer, leaves)
        except httpx.TransportError:
            self.counts["failed"] += 1
        return answer

    async def _stream(self, prompt: list[int], answer: list[int], leaves: bool) -> None:
        body: dict[str, Any] = {"model": self._model, "prompt": prompt, "max_tokens": 32, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True, "return_token_ids": True}
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                self.counts["refused"] += 1
                return
            async for line in response.aiter_lines():
                event = json.loads(line[6:]) if line.startswith("data: {") else {}
                self.counts["failed"] += "error" in event
                answer += [token for choice in event.get("choices", ()) for token in choice.get("token_ids") or ()]
                if leaves and answer:
                    self.counts["left"] += 1
                    return
        self.counts["answered"] += 1
        self.counts["different"] += answer != self._answers.setdefault(tuple(prompt), answer)

    def _text(self, length: int) -> list[int]:
        return [self._draw.randrange(*TOKENS) for _ in range(length)]


class Workers:
    """The service's processes; a worker's metrics come from its health port."""

    def __init__(self, root: int, files: Path | None) -> None:
        self._files = files
        self._root = psutil.Process(root)

    async def quiet(self, http: httpx.AsyncClient) -> dict[str, dict[str, float]]:
        """Metrics of each worker once no one uses a block. Raises TimeoutError."""
        async with asyncio.timeout(PATIENCE):
            while True:
                ports = dict(filter(None, map(_port, self._root.children())))
                with suppress(httpx.TransportError):  # a worker without CPU time for a minute closes connections
                    read = {name: await _metrics(http, port) for name, port in ports.items()}
                    ready = all("used_blocks" in each for each in read.values())  # otherwise a core starts
                    if ready and not any(each["used_blocks"] + each["quarantined_blocks"] for each in read.values()):
                        return read
                await asyncio.sleep(0.2)

    def memory(self) -> tuple[str, int]:
        """MiB of resident memory of each process, and open descriptors of all."""
        every = [self._root, *self._root.children(recursive=True)]
        sizes = [f"{each.memory_info().rss / 2**20:.1f}" for each in every]
        return " ".join(sizes), sum(each.num_fds() for each in every)

    def files(self) -> int:
        return sum(1 for path in self._files.glob("*/*/?-*")) if self._files else 0


def _port(process: psutil.Process) -> tuple[str, int] | None:
    line = process.cmdline()
    if "worker" not in line or "--announce" not in line:
        return None
    return line[line.index("--name") + 1], json.loads(Path(line[line.index("--announce") + 1]).read_text())["health"]


async def _metrics(http: httpx.AsyncClient, port: int) -> dict[str, float]:
    lines = (await http.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("legato_worker_")]
    return {name.removeprefix("legato_worker_"): float(value) for name, value in pairs}


def _of_tier(read: dict[str, float], tier: str, what: str) -> float:
    """A gauge or counter of a tier; 0 without the tier."""
    return max(read.get(f'kv_tier_{what}{suffix}{{tier="{tier}"}}', 0.0) for suffix in ("", "_total"))


def _wrong(name: str, read: dict[str, float], total: float) -> list[str]:
    """Sums of blocks that do not agree."""
    wrong = []
    if (blocks := sum(read[f"{state}_blocks"] for state in BLOCKS)) != total:
        wrong.append(f"{name}: {blocks:.0f} of {total:.0f} blocks are free, cached, used or quarantined")
    for metric in ("leaked_blocks", "kv_mismatch"):
        if read[metric]:
            wrong.append(f"{name}: {metric} is {read[metric]:.0f}")
    for tier in ("host", "disk"):
        slots, kept = (read.get(f'kv_tier_{each}{{tier="{tier}"}}', 0) for each in ("slots", "blocks"))
        if kept > slots:
            wrong.append(f"{name}: {kept:.0f} blocks in {slots:.0f} slots of the {tier}")
    return wrong


async def soak(url: str, root: int, files: Path | None, args: argparse.Namespace) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        load, workers = Load(http, model, args), Workers(root, files)
        read = await workers.quiet(http)
        totals = {name: sum(each[f"{state}_blocks"] for state in BLOCKS) for name, each in read.items()}
        tiers = [f"{tier} {what}" for tier, what in TIERS]
        print("|".join(["minute", "MiB", "fds", *load_names(), *tiers, "fetches", "files", "wrong"]), flush=True)
        for minute in range(1, args.minutes + 1):
            await load.run(60 - 2, args.rate)
            await asyncio.sleep(1)
            read = await workers.quiet(http)
            wrong = [each for name in read for each in _wrong(name, read[name], totals[name])]
            sums = [sum(_of_tier(each, tier, what) for each in read.values()) for tier, what in TIERS]
            fetches = sum(each.get("kv_fetches_total", 0) for each in read.values())
            if (files_now := workers.files()) != sums[len(COUNTS)]:
                wrong.append(f"{files_now} files, {sums[len(COUNTS)]:.0f} counted")
            sizes, descriptors = workers.memory()
            row = [minute, sizes, descriptors, *(load.counts[name] for name in load_names())]
            print("|".join(map(str, [*row, *map(int, sums), int(fetches), files_now, "; ".join(wrong)])), flush=True)


def load_names() -> tuple[str, ...]:
    return ("answered", "left", "refused", "failed", "different")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-f", "--file", required=True)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1.0, help="chats a second, on average")
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=320, help="tokens of a document")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = yaml.safe_load(Path(args.file).read_text())["spec"]["engine"]
    files = Path(engine["diskKV"]["path"]) if "diskKV" in engine else None
    command = [sys.executable, "-m", "legato_cli.main", "up", "-f", args.file, "--port", str(port)]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert up.stdout is not None
    try:
        said = list(takewhile(lambda line: not line.startswith("Ready: "), up.stdout))
        if up.poll() is not None:
            raise SystemExit("".join(said[-3:]))
        Thread(target=up.stdout.read).start()  # so that its log never fills the pipe
        asyncio.run(soak(f"http://127.0.0.1:{port}", up.pid, files, args))
    finally:
        up.send_signal(signal.SIGINT)
        up.wait()


if __name__ == "__main__":
    main()
