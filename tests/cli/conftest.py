"""The command line in this process, and a folder in which it finds no service of this user."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from legato_cli import main

PARSER = main.parser()  # made once: it takes as long as most commands that are tested


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


Legato = Callable[..., Ended]


@pytest.fixture(scope="session")
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(autouse=True)
def no_service_of_this_user(runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only services that a test starts are running."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime_folder))


@pytest.fixture
def legato(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Legato:
    """Runs a command in this process."""
    monkeypatch.setattr(main, "parser", lambda: PARSER)

    def run(*arguments: object) -> Ended:
        try:
            code = main.main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
