"""Popular clients, unchanged: the scripts of `clients` assert on what comes back."""

from pathlib import Path
from typing import Any

import client_scripts
import pytest

NAMES = sorted(path.stem.removeprefix("with_") for path in client_scripts.FOLDER.glob("with_*.py"))
# LangChain's own tests of tool calls need a model that reads: test_smollm2.py has them.
ARGUMENTS = {"langchain": ("-k", "not tool_call")}


@pytest.mark.timeout(client_scripts.SECONDS + 60)
@pytest.mark.parametrize("name", NAMES)
def test_client(name: str, service: Any, tmp_path: Path) -> None:
    client_scripts.run(name, service.url, tmp_path, *ARGUMENTS.get(name, ()))
    service.until_idle()
