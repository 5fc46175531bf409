"""Programs that tests need in addition to Python, and skips where they are missing."""

import os
import shutil
from typing import NoReturn

import pytest

EVERYTHING_RUNS = os.environ.get("CI") == "true"


def program(*names: str) -> pytest.MarkDecorator:
    """Marks tests that need one of these programs on the PATH. Without it they are skipped, but in CI they fail."""
    missing = not EVERYTHING_RUNS and not any(map(shutil.which, names))
    return pytest.mark.skipif(missing, reason=f"no {' or '.join(names)} on the PATH")


def missing(reason: str) -> NoReturn:
    """Skips the running test since something is not installed, but fails it in CI."""
    if EVERYTHING_RUNS:
        pytest.fail(f"{reason} (with CI=true, nothing may be missing)")
    pytest.skip(reason)
