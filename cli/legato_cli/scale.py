"""`legato scale`: change how many workers a pool of a running service has."""

import argparse
import sys

from legato_protocol import flags

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
    flags.option(parser, "--service", kind=flags.text("NAME"), help="name of the service, if several are running")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask the running `legato up`. Exit code 1: it refused, or none runs."""
    from legato_cli import admin

    try:
        order = {"do": "scale", "pool": args.pool, "replicas": args.replicas, "for": getattr(args, "for")}
        answer = admin.ask(args.service, order)
    except (admin.NotRunning, admin.CannotListen, OSError) as error:
        answer = {"error": str(error)}
    if "error" in answer:
        print(f"legato scale: {answer['error']}", file=sys.stderr)
        return FAILED
    print(answer["message"])
    return 0
