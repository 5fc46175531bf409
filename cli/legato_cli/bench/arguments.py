"""Arguments of `legato bench`; importing this costs nothing, so that `legato --help` stays quick."""

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `bench` to the `legato` command."""
    parser = subparsers.add_parser(
        "bench",
        help="measure an OpenAI-compatible server",
        description="Drives a server with streamed completions and prints TTFT, TPOT, ITL, throughput and goodput.",
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8080", help="base URL of the server (default: %(default)s)")
    add("--model", help="model name (default: the first one that the server lists)")
    add("--workload", choices=["random", "shared-prefix", "trace"], default="random")
    add("--input-tokens", type=_positive, default=256)
    add("--output-tokens", type=_positive, default=64)
    add("--concurrency", type=_list_of(_positive), help="closed loop: requests in flight, e.g. 1,8,32 (default)")
    add("--rate", type=_list_of(_positive_float), help="open loop: requests a second, e.g. 0.5,1,2")
    add("--requests", type=_positive, help="how many per load (default: 3 × concurrency, at least 8)")
    add("--warmup", type=int, default=1, help="requests before each load that are not counted (default: %(default)s)")
    add("--prefixes", type=_positive, default=4, help="shared-prefix: how many different ones (default: %(default)s)")
    add("--prefix-share", type=float, default=0.75, help="shared-prefix: shared part (default: %(default)s)")
    add("--trace", help="trace: a Mooncake .jsonl or an Azure .csv file")
    add("--context", type=_positive, default=4096, help="trace: lengths are scaled to fit this (default: %(default)s)")
    add("--speed", type=_positive_float, default=1.0, help="trace: play it so much faster (default: %(default)s)")
    add("--token-ids", type=_list_of(_positive), default=[100, 40_000], help="range of random ids (default: 100,40000)")
    add("--slo-ttft", type=_positive_float, default=1000.0, help="milliseconds; for goodput (default: %(default)s)")
    add("--slo-tpot", type=_positive_float, default=100.0, help="milliseconds; for goodput (default: %(default)s)")
    add("--timeout", type=_positive_float, default=600.0, help="seconds without a byte (default: %(default)s)")
    add("--seed", type=int, default=0)
    add("--json", metavar="FILE", help="write all figures there, too")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    from legato_cli.bench import command

    return command.run(args)


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def _positive_float(text: str) -> float:
    if not (value := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _list_of(item: Callable[[str], T]) -> Callable[[str], list[T]]:
    def parse(text: str) -> list[T]:
        return [item(part) for part in text.split(",")]

    return parse
