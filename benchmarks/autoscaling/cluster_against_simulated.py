"""Services of paced workers on a real cluster under shortened workloads of the comparison, and the same simulated.

    scripts/e2e --run benchmarks/autoscaling/cluster_against_simulated.py

Each workload has a namespace, an InferenceService with `mode: Managed` and a client; all run at the same time. The
operator scales real pods. The simulator gets the same manifest, profile, trace and the mean start of these pods.
Times of the comparison are divided by 6: the workload, the start, the time for which sizes are kept, and the
beginning, which does not count. Prints the figures of both, and changes of desired sizes with their reasons.
With --start, needs no cluster and only simulates, with pods that start in this time.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import msgspec

sys.path.insert(0, str(Path(__file__).parents[2] / "e2e" / "support"))

import kube
import nodes
import paced
from helm import Release
from kube import Namespace
from samples import Sample, Samples
from service import Service

from legato_cli.bench import client, load, workload
from legato_cli.bench.report import LatencyObjectives
from legato_engine.runner.profile import Profile
from legato_operator.api import parsing
from legato_operator.api.resources import InferenceService
from legato_operator.autoscaler import record
from legato_operator.autoscaler.decide import decide
from legato_simulator.engine import tally
from legato_simulator.engine.scaler import LegatoScaler, Observation
from legato_simulator.simulator import ENGINES, ServiceSimulator
from legato_simulator.workload import synthetic, traces

SECONDS, SKIP, KEPT, START = (seconds / 6 for seconds in (3600, 300, 300, 60))
POD_START = 4.0  # seconds of `START` before the profile's start begins
TRAFFIC = synthetic.SyntheticTraffic(rate=1.5, prompt=1600, output=96, seconds=SECONDS)
LONGEST = 8192  # tokens of a sequence
# Steps are long compared with the delays of two busy cores.
STEP = {"perStep": 0.06, "perRow": 0.001, "perContext": 1e-7, "perToken": 3.4e-4, "perPair": 0}
KV_TOKENS = 60_000
ENGINE = {"chunkTokens": 2048, "blockSize": 64}  # as on GPUs; `nodes.GPU` is one only for the operator of this cluster
SLO = {"ttft": "10s", "tpot": "150ms"}
MOST = 8  # workers of a pool
SAMPLE_EVERY = 1.0  # seconds


@dataclass(frozen=True)
class Figures:
    """One run of a workload, without its beginning."""

    attainment: float
    ttft: float  # seconds, p50
    tpot: float
    gpu_hours: float  # from a pod's creation to its end
    reversals: Mapping[str, float]  # per hour, by pool
    start: float  # mean seconds from a pod's creation until it was ready
    changes: Sequence[str]  # of desired sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=synthetic.PHASES, default=["step", "decode-shift"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=float, help="seconds; without a cluster")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: written(Path(folder), name, args.seed) for name in args.workload}
        served = {} if args.start else serve_all(paths)
        figures = {name: {"cluster": result} for name, result in served.items()}
        for name, path in paths.items():
            start = args.start or served[name].start
            simulated = {engine: simulate(name, path, engine, start) for engine in ENGINES}
            figures[name] = {**figures.get(name, {}), **simulated}
    report(figures)


def written(folder: Path, name: str, seed: int) -> Path:
    """Writes the workload as a trace in Mooncake's format, without requests that are too long."""
    rows = [
        {"timestamp": 1e3 * each.at, "input_length": each.prompt, "output_length": each.output, "hash_ids": each.blocks}
        for each in synthetic.named(name, seed, TRAFFIC, None).arrivals
        if each.prompt + each.output <= LONGEST
    ]
    path = folder / f"{name}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def manifest(name: str) -> list[dict[str, Any]]:
    """Returns a service's ConfigMap with the profile, and its InferenceService."""
    bounds = {"min": 1, "max": MOST}
    scaling = {"mode": "Managed", "scaleDownStabilization": f"{KEPT:.0f}s", "prefill": bounds, "decode": bounds}
    fields: dict[str, Any] = {"routing": {}, "drain": {}, "slo": SLO, "scaling": scaling}
    text = paced.manifest(name, STEP, KV_TOKENS, requests={nodes.GPU: 1}, engine=ENGINE, **fields)
    profile, service = json.loads(text)["items"]
    worker = {**json.loads(profile["data"]["paced.json"]), "startSeconds": START - POD_START}
    profile["data"] = {"paced.json": json.dumps(worker)}
    return [profile, service]


def spec(name: str) -> InferenceService:
    return parsing.read_mapping(manifest(name)[1])


# ── on the cluster ──


def serve_all(paths: Mapping[str, Path]) -> Mapping[str, Figures]:
    """Installs the chart, and serves all workloads at the same time."""
    release = Release(Namespace("legato-system"), "legato", (f"gpuResources={{{nodes.GPU}}}",))
    with nodes.prepared(), kube.namespace(release.namespace.name):
        release.install()
        with ProcessPoolExecutor(len(paths), get_context("spawn")) as processes:
            served = dict(zip(paths, processes.map(serve, paths.keys(), paths.values()), strict=True))
        release.uninstall()
    return served


def serve(name: str, path: Path) -> Figures:
    """Sends the requests of a trace at its times to a service in a namespace of its own."""
    requests = workload.trace(path, traces.MOST_REQUESTS, traces.MOST_TOKENS, 1.0, workload.TokenRange(), 0)
    with kube.namespace(f"autoscaling-{name}") as namespace:
        namespace.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": manifest(name)}))
        service = Service(namespace, name)
        service.until_settled()
        with Samples(service, SAMPLE_EVERY) as samples:
            samples.until(lambda sample: sample.settled, "it rests")
            began, busy, clock = time.monotonic(), cpu_seconds(), datetime.now(UTC)
            records = asyncio.run(ask(service, requests))
        cores = (cpu_seconds() - busy) / (time.monotonic() - began)
        decisions = service.object()["status"]["scaling"]["records"]
        namespace.delete_services()
    failed = [record.error for record in records if record.error]
    print(f"{name}: {len(records)} requests, failed {len(failed)} {failed[:1]}, {cores:.2f} cores busy", flush=True)
    changes = [
        change((datetime.fromisoformat(each["time"]) - clock).total_seconds(), each["pool"], each) for each in decisions
    ]
    return measured(name, [sample for sample in samples.taken if sample.at >= began], records, changes)


async def ask(service: Service, requests: list[workload.WorkloadRequest]) -> list[client.Record]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=service.url, timeout=kube.PATIENCE, limits=limits) as http:
        run = await load.open_loop(lambda request: client.complete(http, service.name, request), requests, None, 0)
        return run.records


def cpu_seconds() -> float:
    """Returns the seconds for which this machine's processors were busy."""
    user, nice, system, _idle, _wait, *interrupts = Path("/proc/stat").read_text().splitlines()[0].split()[1:8]
    return sum(map(int, (user, nice, system, *interrupts))) / 100


def measured(name: str, samples: list[Sample], records: list[client.Record], changes: list[str]) -> Figures:
    slo, began, last = spec(name).spec.slo, samples[0].at, max(record.start for record in records)
    counted = [record for record in records if record.start >= began + SKIP]
    gpu_seconds = sum(
        sum(worker.gpus for worker in sample.workers) * max(0.0, min(after.at, last) - max(sample.at, began + SKIP))
        for sample, after in pairwise(samples)
    )
    desired = [(sample.at - began, sample.desired) for sample in samples if sample.at <= last]
    starts = list(pod_starts(samples))
    return Figures(
        attainment=sum(map(LatencyObjectives(slo.ttft, slo.tpot).kept_by, counted)) / len(counted),
        ttft=tally.quantiles([record.ttft for record in counted]).p50,
        tpot=tally.quantiles([record.tpot for record in counted]).p50,
        gpu_hours=gpu_seconds / 3600,
        reversals=tally.reversals(desired, SKIP, last - began),
        start=sum(starts) / max(1, len(starts)),
        changes=changes,
    )


def pod_starts(samples: list[Sample]) -> Iterator[float]:
    """Yields the seconds from a new pod's first sample to the first in which it is ready."""
    created: dict[str, float] = {}
    served = {worker.uid for worker in samples[0].workers}
    for sample in samples:
        for worker in sample.workers:
            created.setdefault(worker.uid, sample.at)
            if worker.ready and worker.uid not in served:
                served.add(worker.uid)
                yield sample.at - created[worker.uid]


# ── in virtual time ──


class RecordingScaler(LegatoScaler):
    """Decides as the operator does, and records changes."""

    def __init__(self, service: InferenceService) -> None:
        super().__init__(service.spec)
        self.changes: list[str] = []

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        decision = decide(seen.signals, self._windows, self._spec, seen.sizes, seen.now)
        self._windows = decision.windows
        made = {pool: record.entry(each, "") for pool, each in decision.pools.items()}
        self.changes += [
            change(seen.now, pool, each) for pool, each in made.items() if each["current"] != each["recommended"]
        ]
        return {pool: made.desired for pool, made in decision.pools.items()}


def simulate(name: str, path: Path, engine: str, start: float) -> Figures:
    service = spec(name)
    worker = msgspec.json.decode(manifest(name)[0]["data"]["paced.json"], type=Profile)
    scaler = RecordingScaler(service)
    result = ServiceSimulator(service.spec, worker, start, SKIP, engine).simulate(traces.read(path), scaler)
    ttft, tpot = result.ttft.p50, result.tpot.p50
    return Figures(result.attainment, ttft, tpot, result.gpu_hours, result.reversals, start, scaler.changes)


# ── both ──


def change(at: float, pool: str, decision: Mapping[str, Any]) -> str:
    return f"{at:.0f} s {pool} {decision['current']} to {decision['recommended']} ({decision['reason']})"


def report(figures: Mapping[str, Mapping[str, Figures]]) -> None:
    print("\n| workload | | good | GPU-hours | reversals/h | TTFT p50 | TPOT p50 | start |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, results in figures.items():
        for source, each in results.items():
            reversals = ", ".join(f"{pool} {count:.1f}" for pool, count in sorted(each.reversals.items()))
            latencies = f"{each.ttft:.2f} s | {1e3 * each.tpot:.0f} ms | {each.start:.1f} s"
            print(f"| {name} | {source} | {each.attainment:.1%} | {each.gpu_hours:.3f} | {reversals} | {latencies} |")
    for name, results in figures.items():
        for source, each in results.items():
            print(f"\n{name}, {source}:", "; ".join(each.changes))


if __name__ == "__main__":
    main()
