"""The `legato` command. Subcommands are registered here and import their modules only when they run."""

import argparse
import importlib.metadata
import os
import select
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

from legato_cli import api_key, completion, errors, extras
from legato_cli.bench import arguments as bench
from legato_cli.chat import command as chat
from legato_cli.local import up
from legato_cli.machine import doctor, tune
from legato_cli.manifests import validate
from legato_cli.models import prepare
from legato_cli.plan import arguments as plan
from legato_cli.processes import gateway, operator, worker
from legato_cli.recording import arguments as record
from legato_cli.services import describe, explain, logs, profile, rotate_token, scale, state, status
from legato_cli.simulate import arguments as simulate
from legato_cli.ui import command as ui
from legato_protocol.settings.flags import SettingsError

FAILED = 1
BAD_ARGUMENTS = 2
CANNOT_RUN = 2  # as of a bad setting: trying again does not help
INTERRUPTED = 130  # as shells say it
READER_LEFT = 141  # by SIGPIPE


class Command(Protocol):
    """A module of a subcommand. It may also have a DESCRIPTION."""

    HELP: str

    def add_flags(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Returns the exit code. Raises ServiceUnavailable, CannotRun and SettingsError."""
        ...


COMMANDS: Mapping[str, Command] = {
    "up": up,
    "chat": chat,
    "validate": validate,
    "scale": scale,
    "rotate-token": rotate_token,
    "status": status,
    "describe": describe,
    "logs": logs,
    "state": state,
    "explain": explain,
    "profile": profile,
    "ui": ui,
    "doctor": doctor,
    "prepare": prepare,
    "tune": tune,
    "api-key": api_key,
    "completion": completion,
    "bench": bench,
    "record": record,
    "simulate": simulate,
    "plan": plan,
    "worker": worker,
    "gateway": gateway,
    "operator": operator,
}


class _Parser(argparse.ArgumentParser):
    """Prints the error in one line, without a page of usage that would hide it, and a hint to the help."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_ARGUMENTS, f"{self.prog}: {message.removeprefix('argument ')}\nSee '{self.prog} --help'.\n")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    top = _Parser(prog="legato", description="LLM serving with prefill and decode in separate pools")
    top.add_argument("--version", action="version", version=f"legato {importlib.metadata.version('legato')}")
    subparsers = top.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name, command in COMMANDS.items():
        added = subparsers.add_parser(name, help=command.HELP, description=getattr(command, "DESCRIPTION", None))
        command.add_flags(added)
        added.set_defaults(run=command.run)
    subparsers.choices["completion"].set_defaults(command_line=top)  # which it completes
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand and returns its exit code."""
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
        if sys.stdout is not None:  # else it is closed
            sys.stdout.flush()
    except BrokenPipeError:
        if not _has_lost_reader():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return READER_LEFT
    except KeyboardInterrupt:
        return INTERRUPTED
    except errors.ServiceUnavailable as error:
        return _failed(args.command, error, FAILED)
    except (errors.CannotRun, SettingsError) as error:
        return _failed(args.command, error, CANNOT_RUN)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith(extras.OWN):
            raise
        return _failed(args.command, extras.advice(args.command, error.name), CANNOT_RUN)
    return code


def _failed(command: str, reason: object, code: int) -> int:
    print(f"legato {command}: {reason}", file=sys.stderr)
    return code


def _has_lost_reader() -> bool:
    """True if standard output is a pipe that nobody reads any longer, as behind `| head`."""
    if sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


if __name__ == "__main__":
    sys.exit(main())
