"""Arguments of `legato plan`. Cheap to import, so that `legato --help` stays quick."""

import argparse
from functools import partial

from legato_cli.services import options
from legato_protocol.settings import flags

MOST_GPUS = 256
WINDOW = 600.0  # seconds
HELP = "choose between one pool and two, and their sizes, for a trace"
DESCRIPTION = (
    "Simulates one pool of unified workers and separate pools in many sizes, degrees, chunks and step objectives, "
    "and prints the fewest GPUs that serve a trace within the manifest's objectives."
)
run = options.deferred_run("legato_cli.plan.command")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    required = partial(parser.add_argument, type=flags.FILE, metavar="FILE", required=True)
    required("-f", "--file", help="the manifest (required)")
    required("--trace", help="the workload: Mooncake's JSON lines, or Azure's CSV (required)")
    add = partial(flags.option, parser)
    about = "profile of the workers with one degree of parallelism: a JSON file, or the name of a shipped one"
    flags.repeated(parser, "--profile", kind=flags.text("PROFILE"), help=f"{about} (default: the manifest's)")
    whole = partial(flags.whole, "COUNT", 1)
    add("--gpus", kind=whole(MOST_GPUS), help="most GPUs (or ranks without GPUs); the manifest's limits if not given")
    add("--window", kind=flags.DURATION, default=WINDOW, help="length of the busiest part of the trace to simulate")
    add("--jobs", kind=whole(256), help="number of processes (default: one for each processor)")
    add("-o", "--output", kind=flags.FILE, help="write the manifest with the chosen shape to this file")
    add("--json", kind=flags.FILE, help="write all options to this file")
