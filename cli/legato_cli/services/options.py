"""Options that commands share. Cheap to import, so that `legato --help` stays quick."""

import argparse
import importlib
from collections.abc import Callable

from legato_protocol.settings import flags


def deferred_run(module: str) -> Callable[[argparse.Namespace], int]:
    """Returns the `run` of a module that is imported when the command runs."""
    return lambda args: int(importlib.import_module(module).run(args))


def add_service(parser: argparse.ArgumentParser) -> None:
    """Adds the options for a service of `legato up` or on Kubernetes."""
    flags.option(parser, "--service", kind=flags.text("NAME"), help="name of the service, if several are running")
    flags.option(
        parser,
        "-n",
        "--namespace",
        kind=flags.text("NAMESPACE"),
        help="namespace of a service on Kubernetes; without it, a service of `legato up`",
    )


TEXT, JSON = "text", "json"


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the output format."""
    kind = flags.one_of("FORMAT", (TEXT, JSON))
    flags.option(parser, "-o", "--output", kind=kind, default=TEXT, help="text or json")


def add_shown(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that shows a service: once, or every change."""
    add_service(parser)
    add_output(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="show every change until Ctrl-C")
