"""`legato scale`: change how many workers a pool of a running service has."""

import argparse
import sys

from legato_cli.services import asking, options
from legato_protocol.settings import flags

FAILED = 1
MOST_REPLICAS = 10_000


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `legato scale`."""
    parser = subparsers.add_parser("scale", help="change how many workers a pool has")
    pool, replicas = flags.one_of("POOL", ("prefill", "decode")), flags.whole("REPLICAS", 0, MOST_REPLICAS)
    parser.add_argument("pool", type=pool, metavar=pool.metavar, help="prefill or decode")
    parser.add_argument("replicas", type=replicas, metavar=replicas.metavar, help="how many workers it should have")
    flags.option(
        parser, "--for", kind=flags.DURATION, help="with mode Managed: how long the autoscaler pauses (default: 30m)"
    )
    options.add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 1: there is no such service, or it refused."""
    order = {"do": "scale", "pool": args.pool, "replicas": args.replicas, "for": getattr(args, "for")}
    try:
        answer = asking.ask(args.namespace, args.service, order)
    except asking.NoAnswer as error:
        print(f"legato scale: {error}", file=sys.stderr)
        return FAILED
    print(answer["message"])
    return 0
