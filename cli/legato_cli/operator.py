"""`legato operator`: the operator on Kubernetes."""

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, _SubParsersAction

BAD_INPUT = 2


def add_parser(subparsers: "_SubParsersAction[ArgumentParser]") -> None:
    """Adds the subcommand. Flags are those of `legato_operator.kubernetes.settings`."""
    from legato_operator.kubernetes import settings

    parser = subparsers.add_parser("operator", help="run InferenceServices of a Kubernetes cluster")
    settings.add_flags(parser)
    parser.set_defaults(run=run)


def run(flags: Namespace) -> int:
    """Serves until it is stopped. 2: a setting is not allowed, the port is taken, or no API server is known."""
    from legato_operator.kubernetes import settings
    from legato_protocol.flags import SettingsError

    try:
        read = settings.read(flags, os.environ)
    except SettingsError as error:
        return _refuse(error)
    from legato_operator.kubernetes import connection, main

    try:
        return main.run(read)
    except (connection.NoConnection, OSError) as error:
        return _refuse(error)


def _refuse(error: Exception) -> int:
    print(f"legato operator: {error}", file=sys.stderr)
    return BAD_INPUT
