"""Kernels that need AMX, AVX512-BF16 or VNNI, on any processor: their own source, compiled with `emulated_tiles`."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import emulated_tiles

from legato_engine.kernels.cpu.compiled_cache import KernelLocator
from legato_engine.kernels.cpu.simd import vector

_PACKAGE = "legato_engine.kernels.cpu"
_PREFIXES = tuple(f"{_PACKAGE}.{place}" for place in ("simd.vector", "simd.tiles", "attention.", "linear."))


class _Renamed(SourceFileLoader):
    """Loads a module under another name: compiled code is found by names, and in one process there are both."""

    def exec_module(self, module: ModuleType) -> None:
        module.__name__ = f"emulated.{self.name}"
        sys.modules[module.__name__] = module  # where numba looks for it
        exec(self.get_code(self.name), vars(module))  # type: ignore[arg-type]


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any, _target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name.startswith(_PREFIXES) else None
        if spec is not None:
            spec.loader = _Renamed(name, spec.origin)  # type: ignore[arg-type]
        return spec


def _taken_out() -> dict[str, ModuleType]:
    """`vector` and the modules that may use its tiles, which are as if never imported."""
    found = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith(_PREFIXES)}
    for name in found:
        parent, _, last = name.rpartition(".")
        vars(sys.modules[parent]).pop(last, None)
    return found


@contextlib.contextmanager
def _imported_anew() -> Iterator[None]:
    """Forgets afterwards what is imported within."""
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
    """Copies of `legato_engine.kernels.cpu.NAME`, compiled into a cache of their own."""
    digest = sha256(Path(emulated_tiles.__file__).read_bytes()).hexdigest()[:8]
    cache = KernelLocator.compiled.with_name(f"{KernelLocator.compiled.name}-emulated-{digest}")
    finders = [_Finder, *sys.meta_path]
    with (
        _imported_anew(),
        mock.patch.object(KernelLocator, "compiled", cache),
        mock.patch.object(sys, "meta_path", finders),
    ):
        sys.modules[vector.__name__] = emulated_tiles.INSTRUCTIONS
        if any(name.endswith(("bf16", "tiles")) for name in names):
            emulated_tiles.compile_tiles()
        return [importlib.import_module(f"{_PACKAGE}.{name}") for name in names]
