"""`legato rotate-token`: replace the token by which a service's gateways and workers know each other."""

import argparse

from legato_cli.services import asking, options


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `legato rotate-token`."""
    parser = subparsers.add_parser(
        "rotate-token",
        help="replace a service's token on Kubernetes",
        description="Asks the operator to replace the token by which gateways and workers know each other. No request "
        "notices it.",
    )
    options.add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 1: there is no such service, it runs on one machine, or it refused."""
    print(asking.ask(args.namespace, args.service, {"do": "rotate-token"})["message"])
    return 0
