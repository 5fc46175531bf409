"""`legato completion`: prints a script with which a shell completes the commands and flags of `legato`."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from legato_protocol.settings import flags
from legato_protocol.settings.flags import ValueKind

SHELLS = ("bash", "zsh", "fish")
HELP = "print a script for completion in a shell"
DESCRIPTION = (
    "Prints a script by which the shell completes commands, flags and their values: "
    'source <(legato completion bash), eval "$(legato completion zsh)", or "legato completion fish | source".'
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    flags.option(parser, "shell", kind=flags.one_of("SHELL", SHELLS), help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Prints the script."""
    import shtab

    for action in _actions(args.command_line):
        _describe(action, {flags.FILE: shtab.FILE, flags.FOLDER: shtab.DIRECTORY})
    print(shtab.complete(args.command_line, args.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the actions of a command and of all below it."""
    for action in parser._actions:  # argparse shows them no other way
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _describe(action: argparse.Action, paths: Mapping[ValueKind[Any], Any]) -> None:
    """Describes a flag's values to shtab. The parser has read its arguments already, so nothing else changes."""
    kind = action.type
    if isinstance(kind, ValueKind):
        if kind.words:
            action.choices = kind.words
        if kind in paths:
            action.complete = paths[kind]  # type: ignore[attr-defined]
