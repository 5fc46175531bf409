"""What the autoscaler makes of a recorded workload, against pools of a fixed size, in a simple fluid model.

    PYTHONPATH=tests/support python benchmarks/autoscaling.py TRACE [--copies 4] [--ttft 2]

TRACE is a file in Mooncake's or Azure's format, of which `--copies` are laid over each other, each begun at another
time. Attainment is the share of all requests offered whose TTFT and mean TPOT are within the objectives; worker-hours
count from the wish to the removal. Fixed pools are the smallest that are as good, with the largest decode pool that the
autoscaler had, and those of its mean sizes.
"""

import argparse
import csv
import datetime
import itertools
import json
from pathlib import Path

from fluid_service import FluidService, Machine, Prompt

from legato_operator.api.resources import Spec
from legato_operator.autoscaler.signals import DecodeCost, PrefillCost

BLOCK = 512  # tokens that one of Mooncake's hashes stands for
END = 60.0  # seconds in which the last requests finish
MOST = 64  # workers of a pool


def mooncake(path: Path) -> list[tuple[float, int, int, int]]:
    """(seconds, uncached tokens, prompt tokens, output tokens) of requests: a block seen before is cached."""
    seen: set[int] = set()
    found = []
    for line in path.read_text().splitlines():
        item = json.loads(line)
        cached = sum(1 for _ in itertools.takewhile(seen.__contains__, item["hash_ids"]))
        seen.update(item["hash_ids"])
        uncached = max(1, item["input_length"] - BLOCK * cached)
        found.append((item["timestamp"] / 1000, uncached, item["input_length"], item["output_length"]))
    return found


def azure(path: Path) -> list[tuple[float, int, int, int]]:
    """The same; nothing is known of caches."""
    with path.open() as lines:
        rows = [
            (
                datetime.datetime.fromisoformat(row["TIMESTAMP"]).timestamp(),
                row["ContextTokens"],
                row["GeneratedTokens"],
            )
            for row in csv.DictReader(lines)
        ]
    return [(at - rows[0][0], int(prompt), int(prompt), int(output)) for at, prompt, output in rows]


def superposed(trace: list[tuple[float, int, int, int]], copies: int) -> list[tuple[float, int, int, int]]:
    """Copies begun evenly over the trace's time, each going on at its beginning."""
    seconds = trace[-1][0] + 1
    shifts = [seconds * copy / copies for copy in range(copies)]
    return sorted(((at + shift) % seconds, *lengths) for shift in shifts for at, *lengths in trace)


def spec_of(args: argparse.Namespace) -> Spec:
    return Spec.model_validate(
        {
            "model": {"source": {"path": "/model"}},
            "slo": {"ttft": f"{args.ttft}s", "tpot": f"{args.tpot}s"},
            "scaling": {"prefill": {"max": MOST}, "decode": {"max": MOST}},
        }
    )


def serve(args: argparse.Namespace, trace: list[tuple[float, int, int, int]], sizes: dict[str, int], managed: bool):
    """Attainment, worker-hours of each pool and the service itself."""
    prompts = [Prompt(*request) for request in superposed(trace, args.copies)]
    machine = Machine(
        PrefillCost(1 / args.rate, 1 / args.rate / 100_000), DecodeCost(0.008, 0.0001, 2e-8), 30_000, 256, args.start
    )
    service = FluidService(spec_of(args), machine, dict(sizes), managed=managed)
    service.run(prompts, trace[-1][0] + END)
    counted = [prompt for prompt in prompts if prompt.at >= args.skip]
    good = sum(prompt.is_good(service.spec) for prompt in counted) / len(counted)
    hours = {pool: seconds / 3600 for pool, seconds in service.worker_seconds.items()}
    return good, hours, service


def told(name: str, good: float, hours: dict[str, float], note: str) -> str:
    return f"{name:<24} {good:7.1%} {hours['prefill']:9.2f} {hours['decode']:8.2f} {sum(hours.values()):8.2f}  {note}"


def reversals(service: FluidService) -> int:
    """Opposite wishes of a pool within 600 s."""
    count = 0
    for pool in service.sizes:
        steps = [(at, made.pools[pool].wish - made.pools[pool].current) for at, made in service.decisions]
        moves = [(at, by) for at, by in steps if by]
        count += sum(by * then < 0 and at - before < 600 for (before, then), (at, by) in itertools.pairwise(moves))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--skip", type=float, default=0.0, help="seconds whose requests are not counted: a cold start")
    parser.add_argument("--rate", type=float, default=20_000.0, help="prompt tokens per second of a worker")
    parser.add_argument("--start", type=float, default=60.0, help="seconds that a worker takes to start")
    parser.add_argument("--ttft", type=float, default=2.0)
    parser.add_argument("--tpot", type=float, default=0.05)
    args = parser.parse_args()
    trace = (mooncake if args.trace.suffix == ".jsonl" else azure)(args.trace)
    print(f"{'':<24} {'good':>7} {'prefill h':>9} {'decode h':>8} {'sum h':>8}")
    good, hours, service = serve(args, trace, {"prefill": 1, "decode": 1}, managed=True)
    print(told("autoscaler", good, hours, f"{reversals(service)} reversals, ends at {service.sizes}"))
    decode = max(made.pools["decode"].wish for _, made in service.decisions)
    for prefill in range(1, MOST + 1):
        fixed, cost, _ = serve(args, trace, {"prefill": prefill, "decode": decode}, managed=False)
        if fixed >= min(0.999, good):
            print(told("fixed, as good", fixed, cost, f"prefill {prefill}, decode {decode}"))
            break
    mean = {pool: max(1, round(spent * 3600 / (trace[-1][0] + END))) for pool, spent in hours.items()}
    fixed, cost, _ = serve(args, trace, mean, managed=False)
    print(told("fixed, mean size", fixed, cost, f"prefill {mean['prefill']}, decode {mean['decode']}"))


if __name__ == "__main__":
    main()
