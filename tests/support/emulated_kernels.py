"""Kernels that need AMX, AVX512-BF16 or VNNI, on any processor: their own source, compiled with `emulated_tiles`."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

from emulated_tiles import INSTRUCTIONS
from numba.core.dispatcher import Dispatcher

from legato_engine.kernels import vector

_PACKAGE = "legato_engine.kernels"


def _taken_out() -> dict[str, ModuleType]:
    """`vector` and the modules that may use its tiles, which are as if never imported."""
    places = ("tiles", "attention.numba", "linear.numba")
    prefixes = (vector.__name__, *(f"{_PACKAGE}.{place}" for place in places))
    found = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith(prefixes)}
    for name in found:
        parent, _, last = name.rpartition(".")
        vars(sys.modules[parent]).pop(last, None)
    return found


@contextlib.contextmanager
def _imported_anew() -> Iterator[None]:
    """What is imported within is forgotten afterwards."""
    before = _taken_out()
    try:
        yield
    finally:
        _taken_out()
        sys.modules.update(before)
        for name, module in before.items():
            parent, _, last = name.rpartition(".")
            setattr(sys.modules[parent], last, module)


def load(*names: str) -> list[ModuleType]:
    """Copies of `legato_engine.kernels.NAME`, which know nothing of numba's cache: that has code with the real ones."""
    with _imported_anew(), mock.patch.object(Dispatcher, "enable_caching", return_value=None):
        sys.modules[vector.__name__] = INSTRUCTIONS
        return [importlib.import_module(f"{_PACKAGE}.{name}") for name in names]
