"""Compares OpenAI-compatible servers on this machine in one run, by ratios of medians.

    benchmarks/compare.py --server 'legato=legato up -f benchmarks/manifests/unified.yaml --port {port}' \
                          --server 'other=start-other {port}' --rounds 3 --shape 256/64 --shape 1024/32

In each round every server is started, warmed with one load of each concurrency, measured and stopped, one after the
other, so that a drift of the machine's speed meets all of them. The first server is the one that ratios are of.
"""

import argparse
import json
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

Cell = tuple[str, str]  # (shape, load)
METRICS = {"out tok/s": "output_tokens_per_second", "TTFT p50": "ttft_ms", "TPOT p50": "tpot_ms"}


@dataclass
class Found:
    """Everything measured of one server: figures by cell and metric, start-up seconds and memory by round."""

    figures: dict[Cell, dict[str, list[float]]] = field(default_factory=dict)
    ready: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)

    def add(self, shape: str, load: dict[str, object]) -> None:
        cell = self.figures.setdefault((shape, str(load["load"])), {name: [] for name in METRICS})
        for name, key in METRICS.items():
            value = load[key]
            cell[name].append(float(value["p50"] if isinstance(value, dict) else value))  # type: ignore[arg-type]


def main() -> int:
    args = arguments()
    servers = dict(s.split("=", 1) for s in args.server)
    found = {name: Found() for name in servers}
    print(f"load average before: {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores", file=sys.stderr)
    for number in range(args.rounds):
        for name, command in servers.items():
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            measure(name, command, found[name], args, seed=100 * number)
            Path(args.json).write_text(json.dumps(plain(found), indent=2) + "\n")
    print(table(found))
    return 0


def measure(name: str, command: str, found: Found, args: argparse.Namespace, seed: int) -> None:
    port = free_port()
    with started(command.replace("{port}", str(port)), port, args.log_folder / f"{name}.log") as (process, seconds):
        found.ready.append(seconds)
        url = f"http://127.0.0.1:{port}"
        for shape in args.shape:
            bench(url, shape, args.concurrency, seed + 50, requests=1)
            for load in bench(url, shape, args.concurrency, seed, args.requests):
                found.add(shape, load)
        found.memory.append(proportional_memory(process) / 2**30)


def bench(url: str, shape: str, concurrency: str, seed: int, requests: int | None) -> list[dict[str, object]]:
    inputs, outputs = shape.split("/")
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        command = [sys.executable, "-m", "legato_cli.main", "bench", "--url", url, "--json", file.name]
        command += ["--input-tokens", inputs, "--output-tokens", outputs, "--concurrency", concurrency]
        command += ["--seed", str(seed), "--warmup", "0"] + (["--requests", str(requests)] if requests else [])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        loads: list[dict[str, object]] = json.loads(file.read())["loads"]
        return loads


@contextmanager
def started(command: str, port: int, log: Path) -> Iterator[tuple[psutil.Process, float]]:
    """The running server and the seconds it took until it listed its models."""
    begin = time.perf_counter()
    with log.open("ab") as out:
        process = subprocess.Popen(shlex.split(command), stdout=out, stderr=out, start_new_session=True)
    try:
        while not answers(port):
            if process.poll() is not None:
                raise SystemExit(f"{command!r} ended with {process.returncode}; see {log}")
            time.sleep(0.1)
        yield psutil.Process(process.pid), time.perf_counter() - begin
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


def proportional_memory(process: psutil.Process) -> float:
    """Bytes of the whole process tree, shared pages counted once (PSS)."""
    tree = [process, *process.children(recursive=True)]
    return float(sum(p.memory_full_info().pss for p in tree))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def table(found: dict[str, Found]) -> str:
    """Markdown: medians of every server, and the first server's ratio to each other one."""
    first, *others = found
    head = ["in/out", "load", *(f"{name}: {metric}" for name in found for metric in METRICS)]
    head += [f"{first} ÷ {other}: out tok/s" for other in others]
    rows = [head, ["---"] * len(head)]
    for cell in found[first].figures:
        medians = {n: {m: statistics.median(v) for m, v in f.figures[cell].items()} for n, f in found.items()}
        row = [*cell, *(f"{medians[name][metric]:.1f}" for name in found for metric in METRICS)]
        row += [f"{medians[first]['out tok/s'] / medians[other]['out tok/s']:.2f}" for other in others]
        rows.append(row)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines += ["", *(f"{n}: ready after {min(f.ready):.1f} s, {max(f.memory):.2f} GiB" for n, f in found.items())]
    return "\n".join(lines)


def plain(found: dict[str, Found]) -> dict[str, object]:
    return {
        name: {
            "figures": {" ".join(cell): values for cell, values in f.figures.items()},
            "ready_seconds": f.ready,
            "memory_gib": f.memory,
        }
        for name, f in found.items()
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--server", action="append", required=True, help="NAME=COMMAND; {port} in it is replaced")
    add("--rounds", type=int, default=3)
    add("--shape", action="append", help="input/output tokens; may be repeated (default: 256/64 and 1024/32)")
    add("--concurrency", default="1,8,32")
    add("--requests", type=int, help="per load (default: 3 × concurrency, at least 8)")
    add("--json", default="compare.json", help="raw figures of every round")
    add("--log-folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    args.shape = args.shape or ["256/64", "1024/32"]
    return args


if __name__ == "__main__":
    sys.exit(main())
