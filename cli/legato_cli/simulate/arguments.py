"""Arguments of `legato simulate`. Cheap to import, so that `legato --help` stays quick."""

import argparse
from functools import partial
from typing import Any

from legato_protocol import flags

WORKLOADS = ("trace", "superposed", "steady", "mix-shift", "decode-shift", "hit-rate-shift", "step", "idle-burst")
SCALERS = (
    *("fixed", "fixed-unified", "request-rate", "schedule", "concurrency", "aibrix", "llm-d", "dynamo"),
    "clairvoyant",
)
ENGINES = ("fluid", "scheduler")
_MOST = 10**9


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `simulate` to the `legato` command."""
    parser = subparsers.add_parser(
        "simulate",
        help="run a workload through a manifest in virtual time",
        description="Runs workloads through a manifest in virtual time, with the operator's own decisions and limits, "
        "and prints attainment, GPU-hours and latencies.",
    )
    add, repeated = partial(flags.option, parser), partial(_repeated, parser)
    parser.add_argument("-f", "--file", type=flags.FILE, metavar="FILE", required=True, help="the manifest (required)")
    profile = flags.text("PROFILE")
    parser.add_argument(
        "--profile",
        type=profile,
        metavar=profile.metavar,
        help="what a worker can do: a shipped profile, or a JSON file (required but for --signals)",
    )
    repeated("--trace", flags.FILE, "a recorded workload: JSON lines as Mooncake's, CSV as Azure's")
    repeated("--signals", flags.FILE, "instead of workloads: signals of `legato record`, through this manifest")
    repeated("--workload", flags.one_of("WORKLOAD", WORKLOADS), "trace if one is given, or a made one")
    add("--rate", kind=flags.real("RATE", 0.001, 100_000), default=4.0, help="of made workloads: requests per second")
    add("--input-tokens", kind=flags.whole("TOKENS", 1, _MOST), default=4096, help="of made workloads: mean prompt")
    add("--output-tokens", kind=flags.whole("TOKENS", 1, _MOST), default=192, help="of made workloads: mean answer")
    add("--duration", kind=flags.DURATION, default=3600.0, help="of made workloads")
    add("--seed", kind=flags.whole("NUMBER", 0, _MOST), default=0, help="of made workloads")
    add(
        "--engine",
        kind=flags.one_of("ENGINE", ENGINES),
        default="fluid",
        help="scheduler runs the gateway's and the workers' own code step by step; fluid is quick",
    )
    add(
        "--handoff-rate",
        kind=flags.real("TOKENS", 1, 1e12),
        help="tokens of KV per second that leave a worker, with --engine scheduler; no time if not given",
    )
    add("--start", kind=flags.DURATION, help="what a worker takes to start; as the profile says if not given")
    add("--skip", kind=flags.DURATION, default=0.0, help="the first part of each workload, which does not count")
    repeated("--scaler", flags.one_of("SCALER", SCALERS), "another autoscaler to compare with, tuned to each workload")
    parser.add_argument("--compare", action="store_true", help="compare with all of them")
    parser.add_argument(
        "--elsewhere", action="store_true", help="run each of them with what suits another workload, too"
    )
    parser.add_argument(
        "--tune", action="store_true", help="search the bounds and the window of scaling for attainment and GPU-hours"
    )
    add("--jobs", kind=flags.whole("COUNT", 1, 256), default=1, help="processes that simulate")
    add("--json", kind=flags.FILE, help="write all results with their timelines to this file")
    add("--html", kind=flags.FILE, help="write a report with plots to this file")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 2: a file, a flag or the profile cannot be used."""
    from legato_cli.simulate import command

    return command.run(args)


def _repeated(parser: argparse.ArgumentParser, name: str, kind: flags.ValueKind[Any], text: str) -> None:
    parser.add_argument(
        name, type=kind, metavar=kind.metavar, action="append", default=[], help=f"{text} (may be repeated)"
    )
