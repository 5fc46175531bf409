"""A process of the local cluster that starts after its parent has died does not stay."""

import os
import subprocess
import sys

import pytest

from legato_protocol import names

WORKER = ("worker", "--role", "unified", "--name", "a", "--health-port", "0", "--control-port", "0")
GATEWAY = ("gateway", "--max-length", "64", "--port", "0")


@pytest.mark.parametrize("command", [WORKER, GATEWAY], ids=["worker", "gateway"])
def test_a_process_whose_parent_is_gone_ends_at_once(command):
    """Its parent is this test, and it was told another: as if that one had died and this were its heir."""
    program = [sys.executable, "-m", "legato_cli.main", *command, "--model", "builtin:smollm2-135m-instruct"]
    ended = subprocess.run(program, env={**os.environ, names.ENV_PARENT: "1"}, capture_output=True, timeout=120)
    assert ended.returncode == 1
