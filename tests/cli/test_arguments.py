"""Flags of every command, and the services, packages and parents that commands find missing."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from subprocess import PIPE
from types import SimpleNamespace

import pytest

from legato_cli import extras, main
from legato_cli.local import up
from legato_cli.machine import doctor
from legato_protocol import names
from legato_protocol.process import parent

BAD = "\x00"  # nothing accepts it: not even a name may have control characters
MODEL = ("--model", "builtin:smollm2-135m-instruct")


def _commands():
    (action,) = [a for a in main.parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


ARGUMENTS = pytest.mark.parametrize(
    ("command", "action"),
    [
        pytest.param(name, action, id=f"{name} {action.dest}")
        for name, parser in _commands().items()
        for action in parser._actions
        if action.nargs != 0
    ],
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
def test_the_extra_follows_from_the_command_and_its_missing_package(command, missing, extra):
    assert extras.advice(command, missing).endswith(f"not installed: pip install 'legato[{extra}]'")


@pytest.fixture
def lacking(monkeypatch):

    def lack(module):
        def run(_):
            raise ModuleNotFoundError(name=module)

        monkeypatch.setattr(doctor, "run", run)

    return lack


def test_a_command_without_its_packages_ends_with_2_and_says_what_to_install(lacking, capsys):
    """`legato up` starts no process again that ended with 2."""
    lacking("torch.nn")
    assert main.main(["doctor"]) == main.CANNOT_RUN
    said = "legato doctor: needs torch, which is not installed: pip install 'legato[local]'\n"
    assert capsys.readouterr().err == said


def test_a_missing_module_of_legato_itself_is_raised_as_a_fault(lacking):
    lacking("legato_engine.nothing")
    with pytest.raises(ModuleNotFoundError):
        main.main(["doctor"])


COMMANDS = [
    "chat hello",
    "describe",
    "explain scaling",
    "logs",
    "record FILE",
    "scale decode 2",
    "state",
    "status",
    "ui",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_service_it_says_so_and_writes_nothing(command, legato, tmp_path):
    name, *words = command.replace("FILE", str(tmp_path / "s.jsonl")).split()
    code, out, err = legato(name, *words)
    said = f"legato {name}: no service is running (start one with `legato up`)"
    assert (code, out, err.splitlines()[-1]) == (1, "", said)
    code, out, err = legato(name, *words, "--namespace", "prod")
    assert (code, out) == (2 if name == "record" else 1, "")
    assert "--service is required" in err
    assert not list(tmp_path.iterdir())


WORKER = ("worker", "--role", "unified", "--name", "a", "--health-port", 0, "--control-port", 0)
GATEWAY = ("gateway", "--max-length", 64, "--port", 0)


@pytest.mark.parametrize("command", [WORKER, GATEWAY, ("prepare",)], ids=lambda words: words[0])
def test_a_process_whose_parent_is_gone_ends_immediately(command, legato, monkeypatch):
    """It was given another parent than it has: as if that one had died and this were its heir."""
    monkeypatch.setattr(parent, "ctypes", SimpleNamespace(CDLL=lambda *_, **__: None))  # this process is not to die
    monkeypatch.setenv(names.ENV_PARENT, str(os.getpid()))
    assert legato(*command, *MODEL) == (1, "", "")


@pytest.mark.parametrize("command", [("completion", "bash"), ("validate", "-o", "json", str(up.QUICKSTART))])
def test_a_command_whose_output_nobody_reads_ends_quietly(command):
    process = subprocess.Popen([sys.executable, "-m", "legato_cli.main", *command], stdout=PIPE, stderr=PIPE)
    process.stdout.close()
    assert (process.communicate()[1], process.returncode) == (b"", 141)
    closed = subprocess.run(
        ["sh", "-c", f"{shlex.join([sys.executable, '-m', 'legato_cli.main', *command])} >&-"], stderr=PIPE
    )
    assert (closed.stderr, closed.returncode) == (b"", 0)
