"""Numba's cache of compiled kernels: where it is, and how processes share it that compile at the same time, as the
workers of a service do at its first start.
"""

import fcntl
import os
import shutil
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numba
from numba.core.caching import IndexDataCacheFile

_save = IndexDataCacheFile.save


def keep_compiled_beside(folder: Path) -> None:
    """Let numba keep compiled kernels in a folder of their own for this text of all kernels.

    Numba takes a cached kernel for current while the file that defines it is unchanged, although functions of other
    files are compiled into it. Where nothing can be written beside the code, nothing there changes either; numba uses
    no folder that it cannot write, so what an image was built with is copied to where $NUMBA_CACHE_DIR says.
    """
    digest = sha256(numba.__version__.encode())
    for source in sorted(folder.rglob("*.py")):
        if not source.name.startswith("triton"):  # Triton keeps its own, by all that is compiled into a kernel
            digest.update(source.read_bytes())
    compiled = folder / "__pycache__" / digest.hexdigest()[:16]
    given = numba.config.CACHE_DIR
    if os.access(folder, os.W_OK):
        numba.config.CACHE_DIR = given or str(compiled)
    elif given and compiled.is_dir():
        numba.config.CACHE_DIR = str(_copied(compiled, Path(given)))


def save_one_at_a_time() -> None:
    """Let no process save compiled code into a folder while another does.

    To save a function compiled for some types, numba reads the index of its files, takes the next free name, and writes
    the index, then the file. Two processes that compile it for different types would take the same name, and whoever
    reads the index later may find the code of other types: wrong numbers, or reads of other memory.
    """
    IndexDataCacheFile.save = _save_alone


def _copied(compiled: Path, into: Path) -> Path:
    """A copy in a folder that can be written. Whole or not at all: processes may start together."""
    target = into / compiled.name
    if not target.is_dir():
        into.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(dir=into))
        shutil.copytree(compiled, draft, dirs_exist_ok=True)
        try:
            draft.rename(target)
        except OSError:  # another was first
            shutil.rmtree(draft)
    return target


def _save_alone(self: Any, key: Any, data: Any) -> None:
    with Path(self._cache_path, "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        _save(self, key, data)
