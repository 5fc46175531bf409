"""Compares OpenAI-compatible servers on this machine in one run, by ratios of medians.

    python benchmarks/servers/compare.py \
        --server 'legato=legato up -f benchmarks/manifests/unified.yaml --port {port}' \
        --server 'other=start-other {port}' --rounds 3 --shape 256/64 --shape 1024/32

All servers are started first and stay up; each is warmed with one request at each concurrency. Then every cell
(shape and concurrency) is measured at one server after the other, in turned order from round to round, so that the
figures of a ratio are at most minutes apart: the speed of a shared host drifts more than servers differ. What an idle
server takes from the others is measured and printed. The first server is the one that ratios are of.

A shape is input/output tokens, `4x512+64/32` one of four common prefixes of 512 tokens and 64 of the request's own;
`@8` behind it stands in for --concurrency. With `--vllm-bench 'vllm bench serve --tokenizer FOLDER'` every cell is
measured by that program, too, and a second table has its figures.
"""

import argparse
import json
import math
import os
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import load_generators
import psutil
from load_generators import METRICS, Figures, Generator, Load, Shape

OWN, VLLM = "legato bench", "vllm bench serve"
RATIOS = METRICS[:2]
LEAST_REQUESTS = 6


@dataclass(frozen=True)
class Cell:
    """A line of a table."""

    generator: str
    shape: Shape
    concurrency: int

    def __str__(self) -> str:
        return f"{self.shape}, c = {self.concurrency}, {self.generator}"


@dataclass
class Server:
    """A running server and its figures by cell and metric."""

    url: str
    process: psutil.Process
    ready_seconds: float
    idle_cores: float = 0.0
    memory_gib: float = 0.0
    figures: dict[Cell, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, cell: Cell, figures: Figures) -> None:
        values = self.figures.setdefault(cell, {name: [] for name in METRICS})
        for name in METRICS:
            values[name].append(figures[name])

    def medians(self, cell: Cell) -> dict[str, float]:
        """No numbers where it gave none: a server may die."""
        values = self.figures.get(cell, {})
        return {name: statistics.median(values[name]) if name in values else math.nan for name in METRICS}


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the servers are stopped
    print(f"load average before: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores", file=sys.stderr)
    with ExitStack() as up:
        servers: dict[str, Server] = {}
        for name, command in (s.split("=", 1) for s in args.server):
            print(f"starting {name}", file=sys.stderr, flush=True)
            servers[name] = up.enter_context(started(command, args.log_folder / f"{name}.log"))
        for server in servers.values():
            for cell in args.cells:
                load_generators.legato_bench(server.url, Load(cell.shape, cell.concurrency, 1, seed=50))
        for server in servers.values():
            server.idle_cores = cores_taken(server.process)
        for number in range(args.rounds):
            measure_round(servers, number, args)
        for server in servers.values():
            server.memory_gib = proportional_memory(server.process) / 2**30
        Path(args.json).write_text(json.dumps(plain(servers), indent=2) + "\n")
    for generator in args.generators:
        print(f"\nby `{generator}`:\n\n{table(servers, [c for c in args.cells if c.generator == generator])}")
    print(footing(servers))
    return 0


def measure_round(servers: dict[str, Server], number: int, args: argparse.Namespace) -> None:
    names = list(servers)
    turned = names[number % len(names) :] + names[: number % len(names)]
    for at, cell in enumerate(args.cells):
        seed = 1000 * (number * len(args.cells) + at + 1)  # new prompts in every cell: no prefix cache helps anyone
        load = Load(cell.shape, cell.concurrency, max(LEAST_REQUESTS, round(args.requests * cell.concurrency)), seed)
        for name in turned:
            print(f"round {number + 1}: {cell} {name}", file=sys.stderr, flush=True)
            generator: Generator = args.generators[cell.generator]
            if figures := generator(servers[name].url, load):
                servers[name].add(cell, figures)
            Path(args.json).write_text(json.dumps(plain(servers), indent=2) + "\n")


@contextmanager
def started(command: str, log: Path) -> Iterator[Server]:
    """The running server, once it lists its models."""
    begin = time.perf_counter()
    port = free_port()
    with log.open("ab") as out:
        process = subprocess.Popen(
            shlex.split(command.replace("{port}", str(port))), stdout=out, stderr=out, start_new_session=True
        )
    try:
        while not answers(port):
            if process.poll() is not None:
                raise SystemExit(f"{command!r} ended with {process.returncode}; see {log}")
            time.sleep(0.1)
        yield Server(f"http://127.0.0.1:{port}", psutil.Process(process.pid), time.perf_counter() - begin)
    finally:
        stop(process)


def answers(port: int) -> bool:
    try:
        ready = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=2).status_code == 200
        return ready and httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=2).status_code in {200, 404}
    except httpx.HTTPError:
        return False


def stop(process: "subprocess.Popen[bytes]") -> None:
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(signal.SIGINT)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
    for child in children:
        if child.is_running():
            child.kill()
    psutil.wait_procs(children, timeout=10)


def cores_taken(process: psutil.Process, seconds: float = 3.0) -> float:
    """Cores that the idle process tree keeps busy."""
    before = cpu_seconds(process)
    time.sleep(seconds)
    return (cpu_seconds(process) - before) / seconds


def cpu_seconds(process: psutil.Process) -> float:
    times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
    return float(sum(t.user + t.system for t in times))


def proportional_memory(process: psutil.Process) -> float:
    """Bytes of the whole process tree, shared pages counted once (PSS). NaN for a process that died."""
    try:
        tree = [process, *process.children(recursive=True)]
        return float(sum(p.memory_full_info().pss for p in tree))
    except psutil.Error:
        return math.nan


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def table(servers: dict[str, Server], cells: list[Cell]) -> str:
    """Markdown: medians of every server, and the first server's ratios to each other one."""
    first, *others = servers
    head = ["in/out", "concurrency", *(f"{name}: {metric}" for name in servers for metric in METRICS)]
    head += [f"{first} ÷ {other}: {metric}" for other in others for metric in RATIOS]
    rows = [head, ["---"] * len(head)]
    for cell in cells:
        medians = {name: server.medians(cell) for name, server in servers.items()}
        row = [str(cell.shape), str(cell.concurrency)]
        row += [f"{medians[name][metric]:.1f}" for name in servers for metric in METRICS]
        row += [f"{medians[first][name] / medians[other][name]:.2f}" for other in others for name in RATIOS]
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def footing(servers: dict[str, Server]) -> str:
    """Returns a line for each server with its start time and memory."""
    return "\n".join(
        f"{name}: ready after {s.ready_seconds:.1f} s, {s.memory_gib:.2f} GiB, {s.idle_cores:.2f} cores when idle"
        for name, s in servers.items()
    )


def plain(servers: dict[str, Server]) -> dict[str, object]:
    return {
        name: {
            "figures": {str(cell): values for cell, values in server.figures.items()},
            "ready_seconds": server.ready_seconds,
            "memory_gib": server.memory_gib,
            "idle_cores": server.idle_cores,
        }
        for name, server in servers.items()
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--server", action="append", required=True, help="NAME=COMMAND; {port} in it is replaced")
    add("--rounds", type=int, default=3)
    add("--shape", action="append", help="input/output tokens; may be repeated (default: 256/64 and 1024/32)")
    add("--vllm-bench", help="command that measures every cell too, such as 'vllm bench serve --tokenizer FOLDER'")
    add("--concurrency", default="1,8,32")
    add("--requests", type=float, default=3.0, help="for each unit of concurrency; a load has at least 6")
    add("--json", default="compare.json", help="raw figures of every round")
    add("--log-folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    args.generators = {OWN: load_generators.legato_bench}
    if args.vllm_bench:
        args.generators[VLLM] = load_generators.vllm_bench(args.vllm_bench)
    try:
        args.cells = list(cells(args))
    except ValueError as error:
        parser.error(str(error))
    return args


def cells(args: argparse.Namespace) -> Iterator[Cell]:
    """Returns the cells in the order of measurement. Raises ValueError."""
    for text in args.shape or ["256/64", "1024/32"]:
        shape, _, own = text.partition("@")
        for concurrency in (own or args.concurrency).split(","):
            for generator in args.generators:
                yield Cell(generator, load_generators.shape(shape), int(concurrency))


if __name__ == "__main__":
    sys.exit(main())
