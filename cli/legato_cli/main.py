"""The `legato` command. Subcommands are found here and import what they need only when they run."""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence

from legato_cli import bench, doctor, gateway, operator, prepare, scale, status, up, worker

INTERRUPTED = 130  # as shells say it


def parser() -> argparse.ArgumentParser:
    """All of the command line."""
    top = argparse.ArgumentParser(prog="legato", description="LLM serving with prefill and decode in separate pools")
    top.add_argument("--version", action="version", version=f"legato {importlib.metadata.version('legato')}")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for command in (up, scale, status, doctor, prepare, bench, worker, gateway, operator):
        command.add_parser(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; its exit code."""
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())
