"""Functions called in a process of their own, whose Triton kernels are compiled: those of the tests are interpreted."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CALL = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
found = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(*json.loads(sys.argv[4]))
print(json.dumps(found))
"""


def call(function: Callable[..., Any], *arguments: Any, cache: Path | None = None) -> Any:
    """The result of a function of a module in this folder; arguments and result are JSON. `cache` is Triton's folder,
    the user's own if None."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if cache is not None:
        environment["TRITON_CACHE_DIR"] = str(cache)
    where = str(Path(__file__).parent), function.__module__, function.__name__
    done = subprocess.run(
        [sys.executable, "-c", _CALL, *where, json.dumps(arguments)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
