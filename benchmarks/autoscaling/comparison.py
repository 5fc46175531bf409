"""Compares the autoscaler with tuned ones in virtual time: every workload, start time and seed, as one resumable
command.

    .venv/bin/python benchmarks/autoscaling/comparison.py --results FOLDER --traces FOLDER
    .venv/bin/python benchmarks/autoscaling/comparison.py --results FOLDER        # prints what there is

One process. Each simulation writes a file into the folder of results, so that an ended run continues where it was;
existing results are not simulated again, so remove `*.legato.json` after a change of the autoscaler. The scalers that
cost least come first: Legato, and `reactive`, a bound that knows what arrives now, and nothing of what will. Superposed
days take longest, so they come last. Prints the table, what Legato's GPU-hours were for, and every aim that was missed.
"""

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from comparison_table import RAMP, Run, text
from gpu_hour_parts import MeasuredScaler

from legato_engine.runner import profile
from legato_operator.api import parsing
from legato_simulator.baselines import BASELINES, clairvoyant, tuning
from legato_simulator.baselines.clairvoyant import Clairvoyant
from legato_simulator.engine.result import Result
from legato_simulator.engine.scaler import Scaler
from legato_simulator.simulator import ServiceSimulator
from legato_simulator.workload import synthetic, traces
from legato_simulator.workload.workload import Workload

MANIFEST = Path(__file__).parents[1] / "manifests" / "simulated.yaml"
PROFILE, GPUS = "h100x2-llama-3.3-70b-fp8", 2  # of a worker
TRACES = ("mooncake_conversation.jsonl", "azure_code_2023.csv")
MADE = ("mix-shift", "decode-shift", "hit-rate-shift", "step", "idle-burst")
# From 2 up to 10 and down to 1 requests/s of 6,000 shared + 1,200 prompt tokens and answers of 1,000, where pods are
# ready after 100 s; the published duration is unknown
RAMP_TRAFFIC, RAMP_START = synthetic.SyntheticTraffic(rate=1.0, prompt=7200, output=1000), 100.0
RAMP_RATES = (*range(2, 11), *range(9, 0, -1))
RAMP_PHASES = tuple(synthetic.TrafficPhase(1 / len(RAMP_RATES), rate, prefix=6000 / 7200) for rate in RAMP_RATES)
SKIP = 300.0  # seconds: all begin with one worker of each pool
LEGATO, REACTIVE = "legato", "reactive"
FIRST = (LEGATO, REACTIVE)
THEN = ("request-rate", "llm-d", "clairvoyant", "concurrency", "fixed", "schedule", "dynamo", "aibrix")
REACTIVE_UTILISATION = 0.5
SCALERS = (*FIRST, *THEN, "fixed-unified")


@dataclass(frozen=True)
class Row:
    """One simulation, or the tuning of one scaler."""

    workload: str
    start: float  # seconds that a worker takes to serve
    seed: int
    scaler: str

    def path(self, folder: Path) -> Path:
        return folder / f"{self.workload}.{self.start:.0f}s.{self.seed}.{self.scaler}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="the folder of results, created if missing")
    parser.add_argument("--traces", type=Path, help=f"the folder with {' and '.join(TRACES)}; without it, only prints")
    parser.add_argument("--start", type=float, nargs="+", default=[60.0, 10.0, 180.0], help="seconds, those first")
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2, 3], help="of workloads, those first")
    parser.add_argument("--scaler", nargs="+", choices=SCALERS, default=list(SCALERS))
    parser.add_argument("--workload", nargs="+", help="only these, as the table names them")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    if args.traces is not None:
        _run(args)
    runs = [Run(**json.loads(path.read_text())) for path in sorted(args.results.glob("*.json"))]
    print(text(runs))


def _run(args: argparse.Namespace) -> None:
    named = {trace.name: trace for trace in (traces.read(args.traces / name) for name in TRACES)}
    cells = [cell for cell in _cells(args, tuple(named)) if not cell.path(args.results).exists()]
    cells = [cell for cell in cells if not args.workload or cell.workload in args.workload]
    for i, cell in enumerate(cells):
        began = time.monotonic()
        run = _simulated(cell, _workload(cell, named))
        cell.path(args.results).write_text(json.dumps(dataclasses.asdict(run)) + "\n")
        print(f"{i + 1} of {len(cells)}: {cell}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _cells(args: argparse.Namespace, recorded: tuple[str, ...]) -> Iterator[Row]:
    """The cheapest first. A recorded trace is the same with every seed."""
    names = _names(recorded)
    days = [name for name in names if name.endswith(synthetic.SUPERPOSED)]
    others = [name for name in names if name not in days]
    for scalers, chosen in ((FIRST, others), (THEN, others), (("fixed-unified",), others), (SCALERS, days)):
        for seed in args.seed:
            for start in args.start:
                for scaler in (each for each in scalers if each in args.scaler):
                    for name in chosen:
                        if name not in recorded or seed == args.seed[0]:
                            yield Row(name, start, seed, scaler)
        for seed, scaler in itertools.product(args.seed, scalers if chosen is others else ()):
            if scaler in args.scaler:
                yield Row(RAMP, RAMP_START, seed, scaler)


def _names(recorded: tuple[str, ...]) -> tuple[str, ...]:
    return (*recorded, *MADE, *(f"{name}-{synthetic.SUPERPOSED}" for name in recorded))


def _workload(cell: Row, recorded: Mapping[str, Workload]) -> Workload:
    if cell.workload == RAMP:
        return synthetic.made(RAMP, RAMP_PHASES, RAMP_TRAFFIC, cell.seed)
    if cell.workload in MADE:
        return synthetic.named(cell.workload, cell.seed, synthetic.SyntheticTraffic(), None)
    if cell.workload in recorded:
        return recorded[cell.workload]
    return synthetic.superposed(recorded[cell.workload.removesuffix(f"-{synthetic.SUPERPOSED}")], cell.seed)


def _simulated(cell: Row, workload: Workload) -> Run:
    service = parsing.parse(MANIFEST.read_text())
    simulator = ServiceSimulator(service.spec, profile.find(PROFILE), cell.start, SKIP)
    if cell.scaler == LEGATO:
        plan = clairvoyant.plan(simulator.search_context(workload))
        scaler = MeasuredScaler(service.spec, plan, SKIP, workload.arrivals[-1].at)
        run = _run_of(cell, simulator.simulate(workload, scaler))
        return dataclasses.replace(run, parts=scaler.hours)
    if cell.scaler == REACTIVE:
        return _run_of(cell, simulator.simulate(workload, _reactive(simulator, workload)))
    baseline = BASELINES[cell.scaler]
    if baseline.unified:
        simulator = simulator.unified()
    context = simulator.search_context(workload)
    result = tuning.tune(baseline, context, lambda scaler: simulator.simulate(workload, scaler))
    return _run_of(cell, result.result, result.settings.prefill, result.settings.decode, result.runs)


def _reactive(simulator: ServiceSimulator, workload: Workload) -> Scaler:
    """Twice the workers that the busiest half minute until now keeps busy, from its beginning on, and all of them stay.
    Requests that are late here are late with every scaler that neither knows the future nor keeps spare workers."""
    pools = zip(*clairvoyant.plan(simulator.search_context(workload)), strict=True)
    highest = zip(*(itertools.accumulate(pool, max) for pool in pools), strict=True)
    return Clairvoyant(REACTIVE_UTILISATION, REACTIVE_UTILISATION, tuple(highest), ahead=0.0)


def _run_of(cell: Row, result: Result, prefill: float = 0.0, decode: float = 0.0, runs: int = 1) -> Run:
    return Run(
        **dataclasses.asdict(cell),
        attainment=result.attainment,
        gpu_hours=result.gpu_hours,
        reversals=dict(result.reversals),
        prefill=prefill,
        decode=decode,
        runs=runs,
        workers=result.gpu_hours / GPUS / ((result.seconds - SKIP) / 3600),
    )


if __name__ == "__main__":
    main()
