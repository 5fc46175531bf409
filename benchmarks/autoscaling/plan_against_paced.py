"""Plans of `legato plan` against paced workers under load: is the predicted winner the measured one?

    python benchmarks/autoscaling/plan_against_paced.py --slow 4 --cell chat:balanced

A cell is a workload on one kind of worker. The best shape with one pool and the best with two serve it as `legato up`
with paced workers, at a share of the highest load that the chosen one should serve. `--slow` stretches all times of
workers, objectives and arrivals alike, so that other programs on the same cores matter less. With `--virtual`, the
production code of gateway and schedulers serves in virtual time instead. Prints good requests/s per worker, predicted
and measured, and counts the cells in which the better shape is the predicted one.
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
from pathlib import Path
from typing import Any

import httpx
import msgspec
import yaml

from legato_cli.bench import client, load, workload
from legato_cli.bench.report import LatencyObjectives
from legato_cli.errors import ServiceUnavailable
from legato_cli.plan import changes
from legato_cli.services import state
from legato_cli.ui import sources
from legato_engine.runner.profile import Profile, StepTimes
from legato_operator.api import parsing
from legato_simulator.planner import lockstep, window
from legato_simulator.planner.lockstep import ShapeTrial
from legato_simulator.planner.plan import Option, PoolPlanner, ShapePlan
from legato_simulator.simulator import ServiceSimulator
from legato_simulator.workload import synthetic, traces
from legato_simulator.workload.workload import Workload

NAME = "planned"
WORKERS = 1.4  # of unified ones that the mean load keeps busy
POLL = 0.5  # seconds
SETTLING = 2.0  # seconds before the load, in which all workers connect

# Mean tokens of prompts and answers.
WORKLOADS: Mapping[str, tuple[int, int]] = {
    "chat": (300, 60),
    "code": (600, 16),
    "documents": (1500, 30),
    "essays": (100, 150),
}
# Seconds of a step, of a sequence, a token of context, a prompt token, a pair; and slo.ttft, slo.tpot.
HARDWARE: Mapping[str, tuple[StepTimes, float, float]] = {
    "balanced": (StepTimes(0.010, 0.0002, 1e-7, 0.0002, 0), 1.0, 0.030),
    "slow-prompts": (StepTimes(0.006, 0.0001, 1e-7, 0.0006, 0), 2.0, 0.025),
    "slow-steps": (StepTimes(0.025, 0.0004, 2e-7, 0.0001, 0), 1.0, 0.050),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", type=float, default=1.0, help="stretches all times")
    parser.add_argument("--seconds", type=float, default=60.0, help="of a workload, before it is stretched")
    parser.add_argument("--share", type=float, default=0.9, help="of the highest load; at 1, small delays decide")
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cell", action="append", help="WORKLOAD:HARDWARE; may be repeated; all if not given")
    parser.add_argument("--virtual", action="store_true", help="serve by the scheduler engine of the simulator")
    args = parser.parse_args()
    cells = args.cell or [f"{name}:{kind}" for name in WORKLOADS for kind in HARDWARE]
    right = 0
    print("| cell | shape | rate | predicted good/s per worker | measured | ratio | TTFT p50 s | TPOT p50 ms |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for cell in cells:
        with tempfile.TemporaryDirectory() as folder:
            rows = list(compared(args, cell, Path(folder)))
        predicted, measured = (max(range(len(rows)), key=lambda i: rows[i][place]) for place in (0, 1))
        right += predicted == measured
        print(f"| {cell} | {'as predicted' if predicted == measured else 'NOT as predicted'} |", flush=True)
    print(f"\n{right} of {len(cells)} winners as predicted")


def compared(args: argparse.Namespace, cell: str, folder: Path) -> Iterator[tuple[float, float]]:
    """Yields goodput per worker, predicted and measured, of the best shape with one pool and with two."""
    name, kind = cell.split(":")
    step, ttft, tpot = HARDWARE[kind]
    slow = args.slow
    times = StepTimes(*(each * slow for each in msgspec.structs.astuple(step)))
    worker = Profile("made", times, kv_tokens=100_000, start_seconds=0)
    (folder / "worker.json").write_bytes(msgspec.json.encode(worker))
    manifest = written(folder / "worker.json", ttft * slow, tpot * slow)
    plan, planner = planned(manifest, worker, WORKLOADS[name], args)
    options = [option for option in (plan.best(True), plan.best(False)) if option is not None]
    multiple = args.share * max(1.0, plan.chosen.load)
    at = planner.load.at(multiple)
    path = folder / f"{name}.jsonl"
    write(path, at.workload)
    for option in options:
        rate = at.rate * planner.simulate(ShapeTrial(option.shape, multiple)).attainment
        predicted = rate / option.shape.gpus * slow
        if args.virtual:
            measured, text = in_virtual_time(planner, option, multiple, slow)
        else:
            measured, text = served(manifest, option, path, folder, slow)
        shape = f"{option.shape.workers}, chunk {option.shape.chunk}, slo.tpot {option.shape.tpot / slow:.3f}"
        figures = f"{predicted:.3f} | {measured:.3f} | {measured / predicted if predicted else 0:.2f}"
        print(f"| {cell} | {shape} | {at.rate * slow:.2f} | {figures} | {text}", flush=True)
        yield predicted, measured


def written(profile: Path, ttft: float, tpot: float) -> dict[str, Any]:
    """Returns a manifest of paced workers."""
    return {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"source": {"builtin": "smollm2-135m-instruct"}, "servedName": NAME, "maxLength": 8192},
            "engine": {"runner": "Paced", "profile": str(profile), "chunkTokens": 512},
            "slo": {"ttft": f"{1000 * ttft:.0f}ms", "tpot": f"{1000 * tpot:.0f}ms"},
            "prefill": {"replicas": 1},
            "decode": {"replicas": 1},
            "scaling": {"mode": "Fixed"},
        },
    }


def planned(
    manifest: Mapping[str, Any], worker: Profile, lengths: tuple[int, int], args: argparse.Namespace
) -> tuple[ShapePlan, PoolPlanner]:
    """Plans for a load that keeps `WORKERS` unified workers busy."""
    spec = parsing.read_mapping(manifest).spec

    def planner(rate: float) -> PoolPlanner:
        traffic = synthetic.SyntheticTraffic(rate, *lengths, args.seconds * args.slow)
        given = synthetic.made("steady", synthetic.PHASES["steady"], traffic, args.seed)
        return PoolPlanner(ServiceSimulator(spec, worker, objectives=spec.slo), window.busiest(given, 1e9), args.gpus)

    estimate = planner(1.0).estimates().degrees[1]
    made = planner(WORKERS / (estimate.prefill + estimate.decode))
    with lockstep.batches(made.simulate, 1) as batch:
        return made.plan(batch), made


def write(path: Path, given: Workload) -> None:
    """Writes a trace in Mooncake's format."""
    rows = [
        {"timestamp": 1e3 * each.at, "input_length": each.prompt, "output_length": each.output}
        for each in given.arrivals
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def served(manifest: Mapping[str, Any], option: Option, path: Path, folder: Path, slow: float) -> tuple[float, str]:
    """Runs the load against `legato up` and returns good requests/s per worker, and latencies as text."""
    spec = parsing.read_mapping(manifest).spec
    shape = changes.merged(manifest, changes.changes(spec, option.shape.spec(spec)))
    (folder / "up.yaml").write_text(yaml.safe_dump(shape))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "legato_cli.main", "up", "-f", str(folder / "up.yaml"), "--port", str(port)]
    with (folder / "log").open("w") as log:
        up = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            workers = option.shape.prefill + option.shape.decode
            run = asyncio.run(asked(path, f"http://127.0.0.1:{port}", workers))
        finally:
            up.send_signal(2)
            up.wait()
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


async def asked(path: Path, url: str, workers: int) -> list[client.Record]:
    requests = workload.trace(path, traces.MOST_REQUESTS, traces.MOST_TOKENS, 1.0, workload.TokenRange(), 0)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        while await serving() < workers:  # noqa: ASYNC110
            await asyncio.sleep(POLL)
        await asyncio.sleep(SETTLING)
        run = await load.open_loop(lambda request: client.complete(http, NAME, request), requests, None, 0)
        return run.records


async def serving() -> int:
    """Returns the number of workers that serve, as the gateway knows them."""
    try:
        workers: list[dict[str, Any]] = (await state.read(sources.source(None, NAME)))[0]["workers"]
    except ServiceUnavailable:
        workers = []
    return sum(worker["connection"] == "connected" and not worker["draining"] for worker in workers)


if __name__ == "__main__":
    main()
