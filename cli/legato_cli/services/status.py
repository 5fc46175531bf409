"""`legato status`: conditions and workers of a running service."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from legato_cli.services import options, showing

HEADINGS = ("NAME", "READY", "RESTARTS", "REVISION", "STATE")
HELP = "show conditions and workers of a running service"
add_flags = options.add_shown


def run(args: argparse.Namespace) -> int:
    """Prints the status. Raises ServiceUnavailable."""
    return showing.run(args, "status", lines)


def lines(status: Mapping[str, Any]) -> Iterator[str]:
    """Yields a status as text."""
    conditions = status["conditions"]
    yield from table([(c["type"], c["status"], c["reason"], c["message"]) for c in conditions])
    yield ""
    yield from table([HEADINGS, *map(_row, status["pods"])])


def _row(pod: Mapping[str, Any]) -> Sequence[str]:
    return pod["name"], str(pod["ready"]), str(pod["restarts"]), pod["revision"], state(pod)


def state(pod: Mapping[str, Any]) -> str:
    """Returns the state of a worker or gateway, or the reason why it is not ready."""
    return "leaving" if pod["leaving"] else "ready" if pod["ready"] else pod["message"] or "starting"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields rows with columns as wide as their longest entry, without empty columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True) if width).rstrip()
