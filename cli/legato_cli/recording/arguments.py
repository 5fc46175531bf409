"""Arguments of `legato record`; importing this costs nothing, so that `legato --help` stays quick."""

import argparse

from legato_cli.services import options
from legato_protocol.settings import flags

MOST = 1 << 30  # bytes of all files together
HELP = "record what the autoscaler decides from, for `legato simulate --signals`"
DESCRIPTION = (
    "Asks the gateways of a running service every 2 s for what the autoscaler decides from, and writes "
    "it to a file. Changes nothing in the service, whatever its scaling.mode."
)
run = options.deferred_run("legato_cli.recording.command")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "file", type=flags.FILE, metavar="FILE", help="a new file; older rounds move to FILE.1 and so on"
    )
    options.add_service(parser)
    flags.option(parser, "--for", kind=flags.DURATION, help="how long; until Ctrl-C if not given")
    flags.option(
        parser, "--size", kind=flags.SIZE, default=MOST, help="most that all files take; then the oldest rounds go"
    )
