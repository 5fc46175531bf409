"""Every command's flags: what help shows, and what a bad value ends with."""

import argparse
import re
from collections.abc import Callable, Iterator

import pytest

from legato_cli import doctor, extras, main

# A value that nothing accepts: not even a name may have control characters.
BAD = "\x00"


def _commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [a for a in main.parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def _arguments() -> Iterator[tuple[str, argparse.Action]]:
    for name, parser in _commands().items():
        yield from ((name, action) for action in parser._actions if action.nargs != 0)


ARGUMENTS = pytest.mark.parametrize(
    ("command", "action"), [pytest.param(*each, id=f"{each[0]} {each[1].dest}") for each in _arguments()]
)


@ARGUMENTS
def test_help_says_the_kind_of_each_value_in_one_style(command, action):
    assert isinstance(action.metavar, str)
    assert re.fullmatch(r"[A-Z]+([-=:,][A-Z]+|,…)*", action.metavar)
    assert action.help
    assert not action.help.endswith(".")
    assert not re.search(r"unless given|%\(|\bis wanted\b|so (many|few|long)\b", action.help)


@ARGUMENTS
def test_a_bad_value_ends_with_2_and_says_flag_value_and_what_is_allowed(command, action, legato):
    words = [action.option_strings[-1], BAD] if action.option_strings else [BAD] * 2
    code, _, err = legato(command, *words)
    assert code == main.BAD_ARGUMENTS
    first, second = err.splitlines()
    assert re.fullmatch(rf"legato {command}: \S+: not a valid [\w ]+: '\\x00' \(.+\)", first)
    assert all(name in first for name in action.option_strings[-1:])
    assert second == f"See 'legato {command} --help'."


def test_an_unknown_command_names_those_that_exist(legato):
    code, _, err = legato("frobnicate")
    assert code == main.BAD_ARGUMENTS
    assert "frobnicate" in err
    assert all(command in err for command in _commands())


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("worker", "torch", "engine"),
        ("gateway", "kubernetes.client", "gateway"),
        ("status", "kubernetes.client", "operator"),
        ("up", "numba", "local"),
    ],
)
def test_the_extra_follows_from_the_command_and_its_missing_package(command: str, missing: str, extra: str) -> None:
    assert extras.advice(command, missing).endswith(f"not installed: pip install 'legato[{extra}]'")


def test_a_command_without_its_packages_ends_with_2_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`legato up` starts no process again that ended with 2."""
    monkeypatch.setattr(doctor, "run", _failing_to_import("torch.nn"))
    assert main.main(["doctor"]) == main.CANNOT_RUN
    expected = "legato doctor: needs torch, which is not installed: pip install 'legato[local]'\n"
    assert capsys.readouterr().err == expected


def test_a_missing_module_of_legato_itself_is_raised_as_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run", _failing_to_import("legato_engine.nothing"))
    with pytest.raises(ModuleNotFoundError):
        main.main(["doctor"])


def _failing_to_import(module: str) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        raise ModuleNotFoundError(name=module)

    return run
