"""Runs the scripts of tests/system/clients: popular clients, each in an environment of its own."""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "system" / "clients"
SECONDS = 600  # most of it for packages, the first time


def run(name: str, url: str, folder: Path) -> None:
    """Runs the script of the client `name` against a service, in `folder`. Fails with what it printed.

    `uv` makes the environments from the scripts' own requirements, once per machine: together, the clients could not be
    installed.
    """
    command = [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    done = subprocess.run(
        [*command, FOLDER / f"with_{name}.py", url],
        cwd=folder,
        env=os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
