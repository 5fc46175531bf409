"""Every command's flags: what help shows, and what a bad value ends with."""

import argparse
import re
from collections.abc import Iterator

import pytest

from legato_cli import main

# A value that nothing accepts: not even a name may have control characters.
BAD = "\x00"


def _commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in main.parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def _arguments() -> Iterator[tuple[str, argparse.Action]]:
    for name, parser in _commands().items():
        yield from ((name, action) for action in parser._actions if action.nargs != 0)


ARGUMENTS = list(_arguments())
IDS = [f"{command} {action.dest}" for command, action in ARGUMENTS]


@pytest.mark.parametrize(("command", "action"), ARGUMENTS, ids=IDS)
def test_help_says_the_kind_of_each_value_in_one_style(command: str, action: argparse.Action) -> None:
    assert isinstance(action.metavar, str)
    assert re.fullmatch(r"[A-Z]+([-=:,][A-Z]+|,…)*", action.metavar)
    assert action.help
    assert not action.help.endswith(".")
    assert not re.search(r"unless given|%\(|\bis wanted\b|so (many|few|long)\b", action.help)


@pytest.mark.parametrize(("command", "action"), ARGUMENTS, ids=IDS)
def test_a_bad_value_ends_with_2_and_says_flag_value_and_what_is_allowed(
    command: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [action.option_strings[-1], BAD] if action.option_strings else [BAD] * 2
    with pytest.raises(SystemExit) as stopped:
        main.main([command, *words])
    assert stopped.value.code == main.BAD_ARGUMENTS
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"legato {command}: \S+: not a valid [\w ]+: '\\x00' \(.+\)", first)
    assert all(name in first for name in action.option_strings[-1:])
    assert second == f"See 'legato {command} --help'."


def test_an_unknown_command_names_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["frobnicate"])
    assert stopped.value.code == main.BAD_ARGUMENTS
    told = capsys.readouterr().err
    assert "frobnicate" in told
    assert all(command in told for command in _commands())
