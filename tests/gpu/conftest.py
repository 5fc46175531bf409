"""These tests by pytest, on a machine with a GPU: `pytest --confcutdir tests/gpu tests/gpu`. `scripts/gpu` runs them
without it, and among all tests they are skipped, as kernels are interpreted there.
"""

import inspect
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import places

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PLACE = None if INTERPRETED else places.here()
WHY = "kernels are interpreted: use scripts/gpu" if INTERPRETED else "there is no GPU"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = list(inspect.signature(metafunc.function).parameters)
    marks = [pytest.mark.gpu]
    if PLACE is None:
        skipped = [*marks, pytest.mark.skip(reason=WHY)]
        metafunc.parametrize(names, [pytest.param(*[None] * len(names), marks=skipped)])
        return
    every = [{"place": PLACE, **found} for found in places.combinations(metafunc.function, PLACE)]
    metafunc.parametrize(names, [pytest.param(*[found[name] for name in names], marks=marks) for found in every])
