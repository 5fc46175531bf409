"""Compiles the kernels that numba's cache lacks in several processes. As a module, this is one of them:

    python -m legato_engine.kernels.cpu.missing LIST FOLDER PARENT

The worker calls everything once without computing: kernels that would be compiled are listed with the types of their
arguments, and do nothing. Kernels in the cache are loaded by that pass, so that a worker with all of them has computed.
"""

import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from numba.core.dispatcher import Dispatcher

from legato_engine import compilers
from legato_engine.compilers import CompileProcesses
from legato_engine.kernels.cpu.compiled_cache import KernelLocator

_load_and_call = Dispatcher._compile_for_args  # type: ignore[attr-defined]


class Missing(NamedTuple):
    """A kernel that is not compiled for these types."""

    module: str
    name: str
    types: tuple[Any, ...]


def compile_missing(work: Callable[[], None], beat: Callable[[], None]) -> None:
    """Calls `work`, once all kernels that it calls are compiled. It may be called twice, first without results.

    Calls `beat` while processes compile.
    """
    with listing() as missing:
        work()
    if not missing:
        return
    shared = KernelLocator.scratch is None  # otherwise only this process sees what it compiles
    if shared and (count := compilers.processes(len(missing))):
        with TemporaryDirectory(prefix="legato-kernels-") as folder:
            file = Path(folder, "list")
            file.write_bytes(pickle.dumps(missing))
            with CompileProcesses(__name__, [str(file)], count) as processes:
                processes.finish(beat)
    work()


@contextmanager
def listing() -> Iterator[list[Missing]]:
    """Lists kernels that would be compiled, in the order of their first calls, which do nothing."""
    missing: list[Missing] = []

    def compile_for(self: Any, *args: Any, **kws: Any) -> Any:
        if kws or not isinstance(getattr(getattr(self._cache, "_impl", None), "locator", None), KernelLocator):
            return _load_and_call(self, *args, **kws)
        types = tuple([self.typeof_pyval(each) for each in args])
        if types in self.overloads or self._cache._index_key(types, self.targetctx.codegen()) in (
            self._cache._cache_file._load_index()
        ):
            return _load_and_call(self, *args)
        kernel = Missing(self.py_func.__module__, self.py_func.__name__, types)
        if kernel not in missing:
            missing.append(kernel)
        return lambda *_: None

    Dispatcher._compile_for_args = compile_for  # type: ignore[attr-defined]
    try:
        yield missing
    finally:
        Dispatcher._compile_for_args = _load_and_call  # type: ignore[attr-defined]


def main(file: str, folder: str, parent: str) -> None:
    claims = compilers.claims(folder, parent)
    listed: list[Missing] = pickle.loads(Path(file).read_bytes())
    for kernel in listed:
        if claims.take(repr(kernel), f"{kernel.module}.{kernel.name}"):
            getattr(import_module(kernel.module), kernel.name).compile(kernel.types)


if __name__ == "__main__":
    main(*sys.argv[1:])
