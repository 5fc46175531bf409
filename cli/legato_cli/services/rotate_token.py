"""`legato rotate-token`: replaces the token with which a service's gateways and workers authenticate each other."""

import argparse

from legato_cli.services import asking, options


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `rotate-token` to the `legato` command."""
    parser = subparsers.add_parser(
        "rotate-token",
        help="replace a service's token on Kubernetes",
        description="Asks the operator to replace the token by which gateways and workers know each other. No request "
        "notices it.",
    )
    options.add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Requests a new token. Raises ServiceUnavailable, also for a service of `legato up`."""
    print(asking.ask(args.namespace, args.service, {"do": "rotate-token"})["message"])
    return 0
