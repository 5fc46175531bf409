"""Popular clients, unchanged, each in an environment of its own: the scripts of `clients` assert on what comes back.

`uv` makes the environments from the scripts' own requirements, once per machine: together, the clients could not be
installed.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CLIENTS = sorted(Path(__file__).with_name("clients").glob("with_*.py"))
SECONDS = 600  # most of it for packages, the first time

pytestmark = pytest.mark.skipif(importlib.util.find_spec("uv") is None, reason="uv is not installed")


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda path: path.stem.removeprefix("with_"))
def test_client(client: Path, service: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run(
        [*command, client, service.url],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    service.until_idle()
