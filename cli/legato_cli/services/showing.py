"""Prints a service's answers once or repeatedly, as text or JSON."""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from legato_cli.services import asking, options

INTERVAL = 1.0  # seconds between two polls
_CLEAR = "\x1b[2J\x1b[H"
Lines = Callable[[Mapping[str, Any]], Iterator[str]]


def run(args: argparse.Namespace, what: str, lines: Lines) -> int:
    """Asks the service for `what`. Raises ServiceUnavailable, with --watch also when the service no longer exists."""
    with asking.opened(args.namespace, args.service) as ask:
        answers = (ask({"do": what})[what] for _ in (itertools.count() if args.watch else range(1)))
        show(answers, lines, args.output == options.JSON, sys.stdout)
    return 0


def show(
    answers: Iterator[Mapping[str, Any]],
    lines: Lines,
    as_json: bool,
    out: TextIO,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Prints the first answer and each later one that differs. On a terminal it replaces the previous answer."""
    shown = None
    for answer in answers:
        if shown is not None:
            sleep(INTERVAL)
        text = json.dumps(answer, indent=2) if as_json else "\n".join(lines(answer))
        if text != shown:
            print(f"{_between(shown, as_json, out)}{text}", file=out, flush=True)
        shown = text


def _between(shown: str | None, as_json: bool, out: TextIO) -> str:
    if shown is None or as_json:
        return ""
    return _CLEAR if out.isatty() else "\n"
