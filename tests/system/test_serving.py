"""One manifest on a laptop, and popular clients of it."""

from pathlib import Path
from typing import Any

import budget
import client_scripts
import pytest

CLIENTS = sorted(path.stem.removeprefix("with_") for path in client_scripts.FOLDER.glob("with_*.py"))
# Run without a budget; to import one of the others takes up to nine seconds.
FEW_CLIENTS = ["instructor", "pydantic_ai"]


@pytest.mark.timeout(client_scripts.SECONDS + 60)
@pytest.mark.parametrize("name", CLIENTS if budget.FACTOR > 1 else FEW_CLIENTS)
def test_client(name: str, service: Any, tmp_path: Path) -> None:
    """The scripts of `clients` assert on what comes back."""
    client_scripts.run(name, service.url, tmp_path)
    service.until_idle()
