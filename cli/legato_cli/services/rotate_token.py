"""`legato rotate-token`: replaces the token with which a service's gateways and workers authenticate each other."""

import argparse

from legato_cli.services import asking, options

HELP = "replace a service's token on Kubernetes"
DESCRIPTION = (
    "Asks the operator to replace the token by which gateways and workers know each other. No request notices it."
)
add_flags = options.add_service


def run(args: argparse.Namespace) -> int:
    """Requests a new token. Raises ServiceUnavailable, also for a service of `legato up`."""
    print(asking.ask(args.namespace, args.service, {"do": "rotate-token"})["message"])
    return 0
