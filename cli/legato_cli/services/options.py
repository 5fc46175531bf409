"""Options that commands share. Cheap to import, so that `legato --help` stays quick."""

import argparse

from legato_protocol.settings import flags


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


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Adds the option to watch for changes."""
    parser.add_argument("-w", "--watch", action="store_true", help="show every change until Ctrl-C")
