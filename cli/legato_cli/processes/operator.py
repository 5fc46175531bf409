"""`legato operator`: the operator on Kubernetes."""

import os
import sys
from argparse import Namespace

from legato_cli.errors import CannotRun
from legato_operator.kubernetes import settings
from legato_operator.kubernetes.settings import OperatorSettings

HELP = "run InferenceServices of a Kubernetes cluster"
add_flags = settings.add_flags


def run(flags: Namespace) -> int:
    """Serves until it is stopped. Raises SettingsError; CannotRun if the port is taken, or no API server is known.

    With --check-no-services, 1: some are left, or the API server does not say.
    """
    read = settings.read(flags, os.environ)
    from legato_operator.kubernetes import main
    from legato_operator.kubernetes.client import connection

    try:
        if flags.check_no_services:
            return _check_no_services(read)
        return main.run(read)
    except (connection.NoConnection, OSError) as error:
        raise CannotRun(str(error)) from None


def _check_no_services(read: OperatorSettings) -> int:
    from legato_operator.errors import ClusterError
    from legato_operator.kubernetes import remaining

    try:
        left = remaining.check(read)
    except ClusterError as error:
        left = (
            f"whether services are left cannot be found out: {error}. If a watched namespace was deleted, the right to "
            "look there went with it: uninstall without this check, with `helm uninstall --no-hooks`"
        )
    if left:
        print(f"legato operator: {left}", file=sys.stderr)
    return int(bool(left))
