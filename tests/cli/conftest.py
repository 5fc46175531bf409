"""The command line in this process, and a folder in which it finds no service of this user."""

import contextlib
import resource
import sys
from typing import NamedTuple

import pytest

from legato_cli import main

PARSER = main.parser()  # made once: it takes as long as most commands that are tested


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def runtime_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(autouse=True)
def no_service_of_this_user(runtime_folder, monkeypatch):
    """Only services that a test starts are running."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime_folder))


@pytest.fixture
def legato(monkeypatch, capsys):
    """Runs a command in this process."""
    monkeypatch.setattr(main, "parser", lambda: PARSER)

    def run(*arguments):
        try:
            code = main.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """Makes a `kubectl` of a Python program."""

    def make(program):
        path = tmp_path / "kubectl"
        path.write_text(f"#!{sys.executable}\n{program}")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return make


@pytest.fixture
def small_files():
    """Within it, no file grows beyond this number of bytes, as on a full disk."""

    @contextlib.contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited
