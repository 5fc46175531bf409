"""`legato status`: conditions and workers of a running service."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from legato_protocol import flags

FAILED = 1


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `legato status`."""
    parser = subparsers.add_parser("status", help="show conditions and workers of a running service")
    flags.option(parser, "--service", kind=flags.text("NAME"), help="name of the service, if several are running")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask the running `legato up`. Exit code 1: none runs."""
    from legato_cli import admin

    try:
        answer = admin.ask(args.service, {"do": "status"})
    except (admin.NotRunning, admin.CannotListen, OSError) as error:
        answer = {"error": str(error)}
    if "error" in answer:
        print(f"legato status: {answer['error']}", file=sys.stderr)
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
