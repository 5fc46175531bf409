"""`legato scale`: changes the number of workers in a pool of a running service."""

import argparse

from legato_cli.services import asking, options
from legato_protocol.settings import flags

MOST_REPLICAS = 10_000
HELP = "change how many workers a pool has"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    flags.option(parser, "pool", kind=flags.one_of("POOL", ("prefill", "decode")), help="prefill or decode")
    replicas = flags.whole("REPLICAS", 0, MOST_REPLICAS)
    flags.option(parser, "replicas", kind=replicas, help="how many workers it should have")
    flags.option(
        parser, "--for", kind=flags.DURATION, help="with mode Managed: how long the autoscaler pauses (default: 30m)"
    )
    options.add_service(parser)


def run(args: argparse.Namespace) -> int:
    """Sets the size of the pool. Raises ServiceUnavailable."""
    order = {"do": "scale", "pool": args.pool, "replicas": args.replicas, "for": getattr(args, "for")}
    print(asking.ask(args.namespace, args.service, order)["message"])
    return 0
