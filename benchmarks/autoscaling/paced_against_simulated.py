"""A service of paced workers under a step of load, and the same workload simulated by both engines.

    python benchmarks/autoscaling/paced_against_simulated.py --duration 160 --rate 3

Starts `legato up` with `manifests/paced-managed.yaml`, sends the made workload `step` to it, and counts workers that
serve twice a second. The simulator gets the same requests, manifest and profile, and a process's own start on top of
the profile's. Prints figures, their ratios, and both timelines of workers.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from legato_cli.bench import client, load, workload
from legato_cli.errors import ServiceUnavailable
from legato_cli.services import state
from legato_cli.ui import sources
from legato_engine.runner import profile
from legato_operator.api import parsing
from legato_simulator.engine import tally
from legato_simulator.engine.result import Result
from legato_simulator.simulator import ENGINES, ServiceSimulator
from legato_simulator.workload import synthetic, traces
from legato_simulator.workload.workload import Workload

MANIFEST = Path(__file__).parents[1] / "manifests" / "paced-managed.yaml"
NAME = str(parsing.parse(MANIFEST.read_text()).metadata.name)
POOLS = ("prefill", "decode")
LOOK = 0.5  # seconds

Figures = Mapping[str, float]
Sizes = list[tuple[float, Mapping[str, int]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second of the ordinary load")
    parser.add_argument("--input-tokens", type=int, default=400)
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--duration", type=float, default=160.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--process-start", type=float, default=1.5, help="seconds before the profile's start begins")
    args = parser.parse_args()
    traffic = synthetic.SyntheticTraffic(args.rate, args.input_tokens, args.output_tokens, args.duration)
    given = synthetic.made("step", synthetic.PHASES["step"], traffic, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.jsonl"
        write(path, given)
        figures = {"paced": served(path)}
        for engine in ENGINES:
            figures[engine] = simulated(traces.read(path), engine, args.process_start)
    report(figures)


def write(path: Path, given: Workload) -> None:
    """As a trace in Mooncake's format."""
    rows = [
        {"timestamp": 1e3 * each.at, "input_length": each.prompt, "output_length": each.output}
        for each in given.arrivals
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def served(path: Path) -> tuple[Figures, Sizes]:
    """Runs the load against `legato up`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "legato_cli.main", "up", "-f", str(MANIFEST), "--port", str(port)]
    with tempfile.TemporaryFile("w+") as log:
        up = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            return asyncio.run(asked(path, f"http://127.0.0.1:{port}"))
        finally:
            up.send_signal(2)
            up.wait()


async def asked(path: Path, url: str) -> tuple[Figures, Sizes]:
    requests = workload.trace(path, traces.MOST_REQUESTS, traces.MOST_TOKENS, 1.0, workload.TokenRange(), 0)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        while any(count < 1 for count in (await sizes()).values()):  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        model = (await http.get("/v1/models")).json()["data"][0]["id"]
        seen: Sizes = []
        watch = asyncio.ensure_future(watched(seen))
        run = await load.open_loop(lambda request: client.complete(http, model, request), requests, None, 0)
        watch.cancel()
    if failed := [record.error for record in run.records if record.error]:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    ttft = tally.quantiles([record.ttft for record in run.records])
    tokens = sum(record.output_tokens for record in run.records)
    return figures(ttft.p50, ttft.p90, tokens / run.seconds, seen), seen


async def sizes() -> dict[str, int]:
    """Workers that serve, by pool, as the gateway knows them."""
    try:
        workers: list[dict[str, Any]] = (await state.read(sources.source(None, NAME)))[0]["workers"]
    except ServiceUnavailable:
        workers = []
    serving = [w.get("role") for w in workers if w["connection"] == "connected" and not w["draining"]]
    return {pool: serving.count(pool) for pool in POOLS}


async def watched(seen: Sizes) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    while True:
        seen.append((clock() - began, await sizes()))
        await asyncio.sleep(LOOK)


def simulated(given: Workload, engine: str, process_start: float) -> tuple[Figures, Sizes]:
    spec = parsing.parse(MANIFEST.read_text()).spec
    worker = profile.find(spec.engine.profile or "")
    worker_start = process_start + worker.start_seconds
    simulator = ServiceSimulator(spec, worker, worker_start, engine=engine)
    result: Result = simulator.simulate(given, simulator.legato())
    seen = [(sample.at, sample.ready) for sample in result.timeline]
    tokens = sum(arrival.output for arrival in given.arrivals)
    return figures(result.ttft.p50, result.ttft.p90, tokens / result.seconds, seen), seen


def figures(p50: float, p90: float, throughput: float, seen: Sizes) -> Figures:
    """Mean sizes say how the timelines of workers compare."""
    means = {f"{pool} workers, mean": sum(size[pool] for _, size in seen) / len(seen) for pool in POOLS}
    return {"TTFT p50, s": p50, "TTFT p90, s": p90, "output tokens/s": throughput, **means}


def report(figures: Mapping[str, tuple[Figures, Sizes]]) -> None:
    paced = figures["paced"][0]
    print("| figure | paced | " + " | ".join(f"{name}, ÷ paced" for name in list(figures)[1:]) + " |")
    print("| --- |" + " --- |" * len(figures))
    for name, value in paced.items():
        others = [
            f"{figures[engine][0][name]:.3f}, {figures[engine][0][name] / value:.2f}" for engine in list(figures)[1:]
        ]
        print(f"| {name} | {value:.3f} | {' | '.join(others)} |")
    for name, (_, seen) in figures.items():
        print(
            f"\n{name}: " + ", ".join(f"{at:.0f} s {size['prefill']} + {size['decode']}" for at, size in changes(seen))
        )


def changes(seen: Sizes) -> Sizes:
    """Returns the sizes that differ from the previous one."""
    return [entry for before, entry in zip([None, *seen], seen, strict=False) if not before or before[1] != entry[1]]


if __name__ == "__main__":
    main()
