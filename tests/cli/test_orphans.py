"""A process of the local cluster that starts after its parent has died does not stay."""

import os
from types import SimpleNamespace

import pytest

from legato_protocol import names, parent

MODEL = "builtin:smollm2-135m-instruct"
WORKER = ("worker", "--role", "unified", "--name", "a", "--health-port", 0, "--control-port", 0, "--model", MODEL)
GATEWAY = ("gateway", "--max-length", 64, "--port", 0, "--model", MODEL)


@pytest.mark.parametrize("command", [WORKER, GATEWAY, ("prepare", "--model", MODEL)], ids=lambda words: words[0])
def test_a_process_whose_parent_is_gone_ends_immediately(command, legato, monkeypatch):
    """It was given another parent than it has: as if that one had died and this were its heir."""
    monkeypatch.setattr(parent, "ctypes", SimpleNamespace(CDLL=lambda *_, **__: None))  # this process is not to die
    monkeypatch.setenv(names.ENV_PARENT, str(os.getpid()))
    assert legato(*command) == (1, "", "")
