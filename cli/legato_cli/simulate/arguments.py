"""Arguments of `legato simulate`. Cheap to import, so that `legato --help` stays quick."""

import argparse
from functools import partial

from legato_cli.services import options
from legato_protocol.settings import flags

WORKLOADS = ("trace", "superposed", "steady", "mix-shift", "decode-shift", "hit-rate-shift", "step", "idle-burst")
SCALERS = (
    *("fixed", "fixed-unified", "request-rate", "schedule", "concurrency", "aibrix", "llm-d", "dynamo"),
    "clairvoyant",
)
ENGINES = ("fluid", "scheduler")
_MOST = 10**9
HELP = "run a workload through a manifest in virtual time"
DESCRIPTION = (
    "Runs workloads through a manifest in virtual time, with the operator's own decisions and limits, "
    "and prints attainment, GPU-hours and latencies."
)
run = options.deferred_run("legato_cli.simulate.command")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    _add_service(parser)
    _add_workloads(parser)
    _add_engine(parser)
    _add_comparison(parser)
    add = partial(flags.option, parser)
    add("--jobs", kind=flags.whole("COUNT", 1, 256), default=1, help="number of processes")
    add("--json", kind=flags.FILE, help="write all results with their timelines to this file")
    add("--html", kind=flags.FILE, help="write a report with plots to this file")


def _add_service(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", type=flags.FILE, metavar="FILE", required=True, help="the manifest (required)")
    about = "profile of the workers: a JSON file, or the name of a shipped one (required without --signals)"
    flags.option(parser, "--profile", kind=flags.text("PROFILE"), help=about)


def _add_workloads(parser: argparse.ArgumentParser) -> None:
    add, repeated = partial(flags.option, parser), partial(flags.repeated, parser)
    repeated("--trace", kind=flags.FILE, help="a recorded workload: Mooncake's JSON lines, or Azure's CSV")
    repeated("--signals", kind=flags.FILE, help="replay a recording of `legato record` instead of a workload")
    workload = flags.one_of("WORKLOAD", WORKLOADS)
    repeated("--workload", kind=workload, help="a workload: trace (the default with --trace), or a synthetic one")
    rate, tokens = flags.real("RATE", 0.001, 100_000), flags.whole("TOKENS", 1, _MOST)
    add("--rate", kind=rate, default=4.0, help="synthetic workloads: requests per second")
    add("--input-tokens", kind=tokens, default=4096, help="synthetic workloads: mean tokens of a prompt")
    add("--output-tokens", kind=tokens, default=192, help="synthetic workloads: mean tokens of an answer")
    add("--duration", kind=flags.DURATION, default=3600.0, help="synthetic workloads: their length")
    add("--seed", kind=flags.whole("NUMBER", 0, _MOST), default=0, help="synthetic workloads: random seed")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = partial(flags.option, parser)
    add(
        "--engine",
        kind=flags.one_of("ENGINE", ENGINES),
        default="fluid",
        help="scheduler runs the gateway's and the workers' own code step by step; fluid is quick",
    )
    add(
        "--handoff-rate",
        kind=flags.real("TOKENS", 1, 1e12),
        help="tokens of KV per second that leave a worker, with --engine scheduler; without it, hand-offs take no time",
    )
    add("--start", kind=flags.DURATION, help="time from a worker's creation until it serves (default: the profile's)")
    add("--skip", kind=flags.DURATION, default=0.0, help="exclude the first part of each workload from all figures")


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    scaler = flags.one_of("SCALER", SCALERS)
    flags.repeated(parser, "--scaler", kind=scaler, help="another autoscaler, tuned to each workload")
    parser.add_argument("--compare", action="store_true", help="run all other autoscalers")
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="also run each autoscaler with its best settings for the previous workload",
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="search the manifest's bounds and scaleDownStabilization for attainment and GPU-hours",
    )
