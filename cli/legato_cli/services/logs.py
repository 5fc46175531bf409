"""`legato logs`: shows the log lines of workers and gateways."""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TextIO

from legato_cli.errors import ServiceUnavailable
from legato_cli.services import asking, options
from legato_protocol import names
from legato_protocol.settings import flags

FAILED = 1
INTERVAL = 0.5  # seconds between two questions for new lines
MOST_LINES = 1_000_000
MOST_PODS = 100  # that `kubectl` follows at a time
HELP = "show what workers and gateways wrote"
DESCRIPTION = "Of a `legato up`, the last 8 MiB of lines; on Kubernetes, as `kubectl logs` shows them."


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "worker",
        nargs="?",
        type=flags.kubernetes_name("WORKER"),
        metavar="WORKER",
        help="one worker or gateway; all if not given",
    )
    options.add_service(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new lines until Ctrl-C")
    flags.option(
        parser,
        "--tail",
        kind=flags.whole("LINES", 0, MOST_LINES),
        help="the last lines only; all that are kept if not given",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the lines. Raises ServiceUnavailable, with --follow also when the service or worker has ended."""
    if args.namespace is not None:
        return _on_kubernetes(args)
    with asking.opened(None, args.service) as ask:
        follow(ask, args.worker, args.tail, args.follow, sys.stdout)
    return 0


def follow(
    ask: asking.Ask,
    worker: str | None,
    tail: int | None,
    endless: bool,
    out: TextIO,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Prints page after page; each line is preceded by who wrote it. Raises ServiceUnavailable."""
    order = {"do": "logs", "pod": worker, "tail": tail}
    while True:
        page = ask(order)
        for pod, text in page["lines"]:
            print(f"{pod} | {text}", file=out)
        out.flush()
        if not page["more"]:
            if not endless:
                return
            sleep(INTERVAL)
        order = {"do": "logs", "pod": worker, "after": page["next"]}


def _on_kubernetes(args: argparse.Namespace) -> int:
    if args.service is None and args.worker is None:
        raise ServiceUnavailable(asking.NAME_REQUIRED)
    command = kubectl(args.namespace, args.service, args.worker, args.tail, args.follow)
    try:
        return FAILED if subprocess.run(command, check=False).returncode else 0
    except OSError as error:
        raise ServiceUnavailable(f"kubectl cannot be started: {error.strerror} (it shows the logs)") from None


def kubectl(namespace: str, service: str | None, worker: str | None, tail: int | None, endless: bool) -> list[str]:
    """Returns the command that shows logs of one pod, or of all pods of the service."""
    selector = f"{names.LABEL_SERVICE}={service},{names.LABEL_ROLE}"
    chosen = [f"pod/{worker}"] if worker else ["--selector", selector, f"--max-log-requests={MOST_PODS}"]
    lines = f"--tail={-1 if tail is None else tail}"  # with a selector, kubectl's own default is 10
    going_on = ["--follow"] if endless else []
    return ["kubectl", "--namespace", namespace, "logs", *chosen, "--all-containers", "--prefix", lines, *going_on]
