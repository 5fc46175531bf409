"""`legato scale`: change how many workers a pool of a running service has."""

import argparse
import sys

FAILED = 1


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `legato scale`."""
    parser = subparsers.add_parser("scale", help="change how many workers a pool has")
    parser.add_argument("pool", choices=("prefill", "decode"))
    parser.add_argument("replicas", type=int)
    parser.add_argument("--service", help="which one, when several run")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Ask the running `legato up`. Exit code 1: it refused, or none runs."""
    from legato_cli import admin

    try:
        answer = admin.ask(args.service, {"do": "scale", "pool": args.pool, "replicas": args.replicas})
    except (admin.NotRunning, admin.CannotListen, OSError) as error:
        answer = {"error": str(error)}
    if "error" in answer:
        print(f"legato scale: {answer['error']}", file=sys.stderr)
        return FAILED
    print(answer["message"])
    return 0
