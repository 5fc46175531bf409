"""Compares routing by prefixes with round robin, over shared prompts, in virtual time.

    python benchmarks/gateway/prefix_routing.py --rates 3 10 20 30 40 49 60

The simulator runs the production router, admission, KV index and schedulers over workers that take a profile's times;
round robin only replaces the choice of the worker. Each stage sends requests at one rate (Poisson) to a fleet that
keeps its caches; a prompt is one of `--groups` shared prefixes and tokens of its own. The shape is the one that llm-d
publishes: 8 workers, 150 prefixes of 6,000 tokens, 1,200 tokens of their own, answers of 1,000.
"""

import argparse
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

from legato_engine.runner import profile
from legato_gateway import policy
from legato_gateway.routing.choose import NOTHING
from legato_gateway.routing.fleet_snapshot import FleetSnapshot
from legato_operator.api import parsing
from legato_simulator.engine.engine import RunSettings
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.scaler import LegatoScaler
from legato_simulator.engine.scheduler.engine import SchedulerEngine
from legato_simulator.engine.tally import quantiles
from legato_simulator.workload.workload import Arrival, Workload

MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {{name: prefixes}}
spec:
  model: {{servedName: m, maxLength: 16384, source: {{builtin: smollm2-135m-instruct}}}}
  engine: {{runner: Paced, profile: {profile}, chunkTokens: 8192, maxRunning: 1024}}
  prefill: {{replicas: 0}}
  decode: {{replicas: {workers}, parallelism: {{tensor: {tensor}}}}}
  slo: {{ttft: 1s, tpot: {tpot}}}
  scaling: {{mode: Fixed}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[3, 10, 20, 30, 40, 49, 60])
    parser.add_argument("--stage", type=float, default=30.0, help="seconds at each rate")
    parser.add_argument("--pause", type=float, default=60.0, help="seconds between two stages")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--groups", type=int, default=150)
    parser.add_argument("--shared", type=int, default=6000)
    parser.add_argument("--own", type=int, default=1200)
    parser.add_argument("--output", type=int, default=1000)
    parser.add_argument("--tpot", default="100ms", help="the manifest's `slo.tpot`")
    parser.add_argument("--profile", default="h200-llama-3.1-8b-bf16")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| router | requests/s | TTFT p50, p90 | TPOT p50 | output tokens/s |")
    print("| --- | --- | --- | --- | --- |")
    for name, router in (("Legato", nullcontext()), ("round robin", round_robin())):
        with router:
            for row in stages(args):
                print(f"| {name} | {row} |", flush=True)


@contextmanager
def round_robin() -> Iterator[None]:
    """Sends each request to the next worker that has room."""
    numbers = itertools.count()

    def place(
        need: policy.Need,
        snapshot: FleetSnapshot,
        matches: policy.Matches,
        rules: policy.Policy,
        predicted: policy.Matches = NOTHING,
    ) -> policy.Route | policy.NoRoute:
        workers = snapshot.workers
        first = next(numbers)
        for offset in range(len(workers)):
            worker = workers[(first + offset) % len(workers)]
            one = FleetSnapshot((worker,))
            if isinstance(route := original(need, one, matches, rules, predicted), policy.Route):
                return route
        return route

    original = policy.place
    with mock.patch.object(policy, "place", place):
        yield


def stages(args: argparse.Namespace) -> Iterator[str]:
    """Yields the figures of each stage, in order."""
    times = profile.find(args.profile)
    values = {"profile": args.profile, "workers": args.workers, "tensor": times.tensor, "tpot": args.tpot}
    spec = parsing.parse(MANIFEST.format(**values)).spec
    workload = Workload("prefixes", tuple(arrived(args)), args.shared)
    engine = SchedulerEngine(RunSettings(spec, workload, times, 0.0), LegatoScaler(spec))
    ended: list[SimulatedRequest] = []
    with mock.patch.object(engine.tally, "finish", ended.append):
        engine.run()
    for number, rate in enumerate(args.rates):
        begin = number * (args.stage + args.pause)
        mine = [r for r in ended if begin <= r.arrival.at < begin + args.stage]
        ttft, tpot = quantiles([r.ttft for r in mine]), quantiles([r.tpot for r in mine])
        seconds = max(r.done or 0.0 for r in mine) - begin
        speed = sum(r.arrival.output for r in mine) / seconds
        yield f"{rate:g} | {ttft.p50:.2f}, {ttft.p90:.2f} s | {1e3 * tpot.p50:.0f} ms | {speed:,.0f}"


def arrived(args: argparse.Namespace) -> Iterator[Arrival]:
    source = random.Random(args.seed)
    for number, rate in enumerate(args.rates):
        at = number * (args.stage + args.pause)
        end = at + args.stage
        while (at := at + source.expovariate(rate)) < end:
            yield Arrival(at, args.shared + args.own, args.output, (source.randrange(args.groups),))


if __name__ == "__main__":
    main()
