"""`legato status`: conditions and workers of a running service."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from legato_cli.services import asking, options

FAILED = 1


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `legato status`."""
    parser = subparsers.add_parser("status", help="show conditions and workers of a running service")
    options.add_service(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 1: there is no such service."""
    try:
        answer = asking.ask(args.namespace, args.service, {"do": "status"})
    except asking.NoAnswer as error:
        print(f"legato status: {error}", file=sys.stderr)
        return FAILED
    print("\n".join(lines(answer["status"])))
    return 0


def lines(status: Mapping[str, Any]) -> Iterator[str]:
    """A status as people read it."""
    for condition in status["conditions"]:
        yield f"{condition['type']:<18} {condition['status']:<8} {condition['reason']:<16} {condition['message']}"
    yield ""
    yield f"{'NAME':<28} {'READY':<6} {'RESTARTS':<9} {'REVISION':<11} STATE"
    for pod in status["pods"]:
        state = "leaving" if pod["leaving"] else "ready" if pod["ready"] else pod["message"]
        yield f"{pod['name']:<28} {pod['ready']!s:<6} {pod['restarts']:<9} {pod['revision']:<11} {state}"
