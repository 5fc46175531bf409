"""Plans of `legato plan` against workers under load: is the predicted winner the measured one?

    python benchmarks/autoscaling/plan_against_measured.py --slow 4 --cell chat:balanced
    python benchmarks/autoscaling/plan_against_measured.py --workers cpu --profile ../cpu.json

A cell is a workload on one kind of worker. The best shape with one pool and the best with two serve it as `legato up`,
at a share of the highest load that the chosen one should serve. `--workers cpu` are workers of the built-in model with
a core and a thread each; `--profile` is measured first, with all cores busy, if the file does not exist. Others are
paced: `--slow` stretches all times of workers, objectives and arrivals alike, so that other programs on the same cores
matter less. With `--virtual`, the production code of gateway and schedulers serves in virtual time instead. Prints good
requests/s per worker, predicted and measured, and counts the cells in which the better shape is the predicted one.
"""

import argparse
import asyncio
import dataclasses
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml
from plan_cells import KINDS, NAME, Cells, Hardware, manifest

from legato_cli.bench import client, load, workload
from legato_cli.bench.report import LatencyObjectives
from legato_cli.errors import ServiceUnavailable
from legato_cli.plan import changes
from legato_cli.services import state
from legato_cli.ui import sources
from legato_engine.runner import profile
from legato_engine.runner.profile import Profile, StepTimes
from legato_operator.api import parsing
from legato_simulator.planner import lockstep, window
from legato_simulator.planner.lockstep import ShapeTrial
from legato_simulator.planner.plan import Option, PoolPlanner, ShapePlan
from legato_simulator.simulator import ServiceSimulator
from legato_simulator.workload import synthetic, traces
from legato_simulator.workload.workload import Workload

LEGATO = (sys.executable, "-m", "legato_cli.main")
POLL = 0.5  # seconds
SETTLING = 2.0  # seconds before the load, in which all workers connect
WARM = 12  # requests before the load, by which workers learn what steps cost
CONTEXT = 1024  # of a measured profile: prompts have up to half of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", choices=tuple(KINDS), default="paced")
    parser.add_argument("--profile", type=Path, help="of the workers, with --workers cpu")
    parser.add_argument("--slow", type=float, default=1.0, help="stretches all times; not with --workers cpu")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a workload, before it is stretched")
    parser.add_argument("--share", type=float, default=0.9, help="of the highest load; at 1, small delays decide")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cell", action="append", help="WORKLOAD:HARDWARE; may be repeated; all if not given")
    parser.add_argument("--virtual", action="store_true", help="serve by the scheduler engine of the simulator")
    parser.add_argument("--plan", action="store_true", help="only plan")
    args = parser.parse_args()
    cells = KINDS[args.workers]
    if (args.workers == "cpu") != (args.profile is not None) or (args.profile and args.slow != 1):
        parser.error("--workers cpu needs --profile, and takes its own time")
    names = args.cell or cells.names
    right = 0
    print("| cell | shape | load | rate | predicted good/s per worker | measured | ratio | TTFT p50 s | TPOT p50 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            rows = list(compared(args, cells, name, Path(folder)))
        predicted, measured = (max(range(len(rows)), key=lambda i: rows[i][place]) for place in (0, 1))
        right += predicted == measured
        print(f"| {name} | {'as predicted' if predicted == measured else 'NOT as predicted'} |", flush=True)
    print(f"\n{right} of {len(names)} winners as predicted")


def compared(args: argparse.Namespace, cells: Cells, cell: str, folder: Path) -> Iterator[tuple[float, float]]:
    """Yields goodput per worker, predicted and measured, of the best shape with one pool and with two."""
    name, kind = cell.split(":")
    slow = args.slow
    worker, made = prepared(args, cells.hardware[kind], folder)
    plan, planner = planned(made, worker, cells, name, args)
    options = [option for option in (plan.best(True), plan.best(False)) if option is not None]
    multiple = args.share * max(1.0, plan.chosen.load)
    at = planner.load.at(multiple)
    path = folder / f"{name}.jsonl"
    write(path, at.workload)
    for option in options:
        rate = at.rate * planner.simulate(ShapeTrial(option.shape, multiple)).attainment
        predicted = rate / option.shape.gpus * slow
        if args.plan:
            measured, text = 0.0, "- | - |"
        elif args.virtual:
            measured, text = in_virtual_time(planner, option, multiple, slow)
        else:
            measured, text = served(made, option, path, folder, slow)
        shape = f"{option.shape.workers}, chunk {option.shape.chunk}, slo.tpot {option.shape.tpot / slow:.3f}"
        figures = f"{predicted:.3f} | {measured:.3f} | {measured / predicted if predicted else 0:.2f}"
        print(f"| {cell} | {shape} | {option.load:.2f} | {at.rate * slow:.2f} | {figures} | {text}", flush=True)
        yield predicted, measured


def prepared(args: argparse.Namespace, hardware: Hardware, folder: Path) -> tuple[Profile, Mapping[str, Any]]:
    """Returns the profile and the manifest of a kind of workers."""
    if hardware.step is None:
        made = manifest(hardware, None)
        if not args.profile.exists():
            measure(made, args.profile, folder)
        return profile.read(args.profile), made
    times = StepTimes(*(each * args.slow for each in msgspec.structs.astuple(hardware.step)))
    worker = Profile("made", times, kv_tokens=100_000, start_seconds=0)
    (folder / "worker.json").write_bytes(msgspec.json.encode(worker))
    return worker, manifest(hardware, folder / "worker.json", args.slow)


def measure(made: Mapping[str, Any], path: Path, folder: Path) -> None:
    """Writes the profile of workers in one pool, of which two serve: each keeps the other's core company."""
    two = changes.merged(made, {"prefill": {"replicas": 0}, "decode": {"replicas": 2}})
    with serving(two, folder) as url:
        asyncio.run(connected(2))
        files = (path, folder / "other.json")
        context = ("--context", str(CONTEXT), "--url", url, "--service", NAME)
        started = [
            subprocess.Popen([*LEGATO, "bench", "--profile", str(file), "--seed", str(10_000_000 * seed), *context])
            for seed, file in enumerate(files)
        ]
        codes = [each.wait() for each in started]
        assert not any(codes)


def planned(
    made: Mapping[str, Any], worker: Profile, cells: Cells, name: str, args: argparse.Namespace
) -> tuple[ShapePlan, PoolPlanner]:
    """Plans for a load that keeps `cells.busy` unified workers busy."""
    spec = parsing.read_mapping(made).spec

    def planner(rate: float) -> PoolPlanner:
        traffic = synthetic.SyntheticTraffic(rate, *cells.workloads[name], args.seconds * args.slow)
        given = synthetic.made("steady", synthetic.PHASES["steady"], traffic, args.seed)
        return PoolPlanner(ServiceSimulator(spec, worker, objectives=spec.slo), window.busiest(given, 1e9), cells.gpus)

    estimate = planner(1.0).estimates().degrees[1]
    full = planner(cells.busy / (estimate.prefill + estimate.decode))
    with lockstep.batches(full.simulate, 1) as batch:
        return full.plan(batch), full


def write(path: Path, given: Workload) -> None:
    """Writes a trace in Mooncake's format."""
    rows = [
        {"timestamp": 1e3 * each.at, "input_length": each.prompt, "output_length": each.output}
        for each in given.arrivals
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def served(made: Mapping[str, Any], option: Option, path: Path, folder: Path, slow: float) -> tuple[float, str]:
    """Runs the load against `legato up` and returns good requests/s per worker, and latencies as text."""
    spec = parsing.read_mapping(made).spec
    with serving(changes.merged(made, changes.changes(spec, option.shape.spec(spec))), folder) as url:
        run = asyncio.run(asked(path, url, option.shape.prefill + option.shape.decode))
    objectives = LatencyObjectives(spec.slo.ttft, spec.slo.tpot)
    good = sum(objectives.kept_by(record) for record in run)
    seconds = list(traces.arrivals(path))[-1].at
    ttft, tpot = (sorted(getattr(each, name) for each in run)[len(run) // 2] / slow for name in ("ttft", "tpot"))
    return good / seconds / option.shape.gpus * slow, f"{ttft:.2f} | {1000 * tpot:.1f} |"


def in_virtual_time(planner: PoolPlanner, option: Option, multiple: float, slow: float) -> tuple[float, str]:
    """Returns the same as `served`, from the production code of gateway and schedulers."""
    service = dataclasses.replace(planner.service, engine="scheduler")
    result = dataclasses.replace(planner, service=service).simulate(ShapeTrial(option.shape, multiple))
    goodput = planner.load.at(multiple).rate * result.attainment / option.shape.gpus * slow
    return goodput, f"{result.ttft.p50 / slow:.2f} | {1000 * result.tpot.p50 / slow:.1f} |"


@contextmanager
def serving(made: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Serves a manifest, and yields its URL."""
    (folder / "up.yaml").write_text(yaml.safe_dump(made))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "log").open("w") as log:
        up = subprocess.Popen(
            [*LEGATO, "up", "-f", str(folder / "up.yaml"), "--port", str(port)], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            up.send_signal(2)
            up.wait()


async def asked(path: Path, url: str, workers: int) -> list[client.Record]:
    """Returns the records of a load, after a few of its requests whose records do not count."""
    requests, warm = (
        workload.trace(path, count, traces.MOST_TOKENS, 1.0, workload.TokenRange(), seed)
        for seed, count in enumerate((traces.MOST_REQUESTS, WARM))
    )
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        await connected(workers)
        for each in (warm, requests):
            run = await load.open_loop(lambda request: client.complete(http, NAME, request), each, None, 0)
        return run.records


async def connected(workers: int) -> None:
    """Waits until as many workers serve, as the gateway knows them."""
    while await counted() < workers:  # noqa: ASYNC110
        await asyncio.sleep(POLL)
    await asyncio.sleep(SETTLING)


async def counted() -> int:
    try:
        workers: list[dict[str, Any]] = (await state.read(sources.source(None, NAME)))[0]["workers"]
    except ServiceUnavailable:
        workers = []
    return sum(worker["connection"] == "connected" and not worker["draining"] for worker in workers)


if __name__ == "__main__":
    main()
