"""The command line of `legato ui`."""

import argparse
import sys

from legato_cli.services import options
from legato_protocol.settings import flags

FAILED = 1
HELP = "show a running service in a browser"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    options.add_service(parser)
    flags.option(
        parser, "--port", kind=flags.PORT_OR_FREE, default=0, help="port of the page on 127.0.0.1; 0 takes a free one"
    )


def run(args: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C. Exit code 1: the port cannot be used. Raises ServiceUnavailable."""
    import asyncio

    from legato_cli.ui import proxy, sources

    try:
        asyncio.run(proxy.serve(sources.source(args.namespace, args.service), args.port))
    except OSError as error:
        print(f"legato ui: cannot listen on 127.0.0.1:{args.port}: {error.strerror}", file=sys.stderr)
        return FAILED
    return 0
