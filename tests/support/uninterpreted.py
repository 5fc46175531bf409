"""Functions called in a process of their own, whose Triton kernels are compiled: those of the tests are interpreted.

Each call is a fork of one process that has imported the large packages, which takes seconds, and nothing else.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SERVER = """
import importlib, json, os, sys, traceback
import numba, torch, triton.language
sys.path.insert(0, sys.argv[1])
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what functions print is no answer
for line in sys.stdin:
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        if status:
            print(json.dumps([None, f"died with status {status}"]), file=answers, flush=True)
        continue
    module, function, arguments = json.loads(line)
    try:
        answer = [getattr(importlib.import_module(module), function)(*arguments), None]
    except BaseException:
        answer = [None, traceback.format_exc()]
    print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)
"""
_running: list["subprocess.Popen[str]"] = []


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function of a module in this folder; arguments and result are JSON."""
    server = _running[0] if _running else _start()
    print(json.dumps([function.__module__, function.__name__, arguments]), file=server.stdin, flush=True)
    found, failure = json.loads(server.stdout.readline())  # type: ignore[union-attr]
    assert failure is None, failure
    return found


def stop() -> None:
    """Ends the process, if there is one."""
    while _running:
        _running.pop().communicate(timeout=30)


def _start() -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", _SERVER, str(Path(__file__).parent)]
    pipe = subprocess.PIPE
    _running.append(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True))
    return _running[0]
