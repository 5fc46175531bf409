"""Numba's cache of compiled kernels: one folder for each state of the kernels' code, shared by all processes and clones
of a user, and safe for processes that compile at the same time, as the workers of a service do at its first start.
"""

import fcntl
import os
import shutil
import sys
import tempfile
import warnings
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from types import FunctionType
from typing import Any, Self

import numba
from numba.core.caching import CacheImpl, _CacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher

PREPARED = "LEGATO_PREPARED"  # names the folder of kernels that were compiled when an image was built; only read
KERNELS = "kernels"  # folder in it

_compile = Dispatcher.compile


class KernelLocator(_CacheLocator):
    """Locates the cache of a kernel by the content of all kernels and its path among them.

    Numba's own locators use the absolute path of a source file, so that every clone compiles anew, and consider a
    cached kernel valid while the file that defines it is unchanged, although functions of other files are compiled into
    it. Register the class with `share_compiled`.
    """

    source: Path  # folder of all kernels
    compiled: Path  # folder for this state of them, made for the first kernel
    scratch: "tempfile.TemporaryDirectory[str] | None" = None  # holds `compiled` where no cache can be written

    def __init__(self, file: str, line: int) -> None:
        self._py_file = file  # numba names it in messages
        self._line = line
        self._folder = self.compiled / Path(file).relative_to(self.source).parent

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self.compiled.name

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, function: FunctionType, file: str) -> Self | None:
        if not Path(file).is_relative_to(cls.source):
            return None
        try:
            return cls._with_folder(function, file)
        except OSError as error:
            folder = cls.compiled.parent
            warnings.warn(f"compiled kernels cannot be kept in {folder} ({error}); set NUMBA_CACHE_DIR", stacklevel=2)
            cls.scratch = tempfile.TemporaryDirectory(prefix="legato-kernels-")  # removed when the process ends
            cls.compiled = Path(cls.scratch.name) / cls.compiled.name
            return cls._with_folder(function, file)

    @classmethod
    def _with_folder(cls, function: FunctionType, file: str) -> Self:
        """Raises OSError if its folder cannot be written."""
        _make(cls.compiled)
        locator = cls(file, function.__code__.co_firstlineno)
        locator.ensure_cache_path()
        return locator


def share_compiled(source: Path) -> None:
    """Makes numba keep kernels in $NUMBA_CACHE_DIR, or else in ~/.cache/legato/kernels.

    `source` is the folder of all kernels, with those for CPUs in `cpu`. Kernels that an image was built with
    ($LEGATO_PREPARED) are copied there first. If that folder cannot be written, numba compiles into a temporary one,
    with a warning.
    """
    given = numba.config.CACHE_DIR
    folder = Path(given) if given else Path.home() / ".cache" / "legato" / KERNELS
    KernelLocator.source = source
    KernelLocator.compiled = folder / _digest(source)
    CacheImpl._locator_classes.insert(0, KernelLocator)


def compile_once() -> None:
    """Prevents processes from compiling the same kernel, or saving it, at the same time.

    A process that finds another one compiling a kernel waits, and loads the result. The lock also keeps numba's index
    right: to save a kernel compiled for some types, numba reads the index, takes the next free file name, and writes
    the index, then the file. Without the lock, two processes would take the same name for different types, and whoever
    reads the index later may find the code of other types, which gives wrong numbers or reads other memory.
    """
    Dispatcher.compile = _compile_alone  # type: ignore[method-assign, assignment]


def _digest(source: Path) -> str:
    """Identifies the text of all kernels for CPUs, of the modules that they share with others, and what compiles it."""
    digest = sha256(f"{numba.__version__} {sys.version}".encode())
    for file in sorted([*source.glob("*.py"), *(source / "cpu").rglob("*.py")]):
        digest.update(f"\0{file.relative_to(source)}\0".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _make(target: Path) -> None:
    """Makes the folder of a state of the kernels, with what an image was built with."""
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    given = os.environ.get(PREPARED)  # without it, the path would be relative: kernels of whoever filled that folder
    if given and (prepared := Path(given, KERNELS, target.name)).is_dir():
        _copy(prepared, target)
    else:
        target.mkdir(exist_ok=True)


def _copy(prepared: Path, target: Path) -> None:
    """Copies a folder whole or not at all: processes may start together."""
    draft = Path(mkdtemp(dir=target.parent))
    shutil.copytree(prepared, draft, dirs_exist_ok=True)
    try:
        draft.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(draft)


def _compile_alone(self: Any, signature: Any) -> Any:
    """Compiles or loads a function for some types. Kernels that it calls are locked in the order of calls, which has no
    cycles; the lock between threads is taken first, since it is held while those are compiled."""
    locator = getattr(getattr(self._cache, "_impl", None), "locator", None)
    if not isinstance(locator, KernelLocator):
        return _compile(self, signature)
    with (
        global_compiler_lock,
        Path(locator.get_cache_path(), f"{self._cache._impl.filename_base}.lock").open("a") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        return _compile(self, signature)
