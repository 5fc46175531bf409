"""Numba's cache, for processes that compile at the same time, as the workers of a service do at its first start."""

import fcntl
from pathlib import Path
from typing import Any

from numba.core.caching import IndexDataCacheFile

_save = IndexDataCacheFile.save


def save_one_at_a_time() -> None:
    """Let no process save compiled code into a folder while another does.

    To save a function compiled for some types, numba reads the index of its files, takes the next free name, and writes
    the index, then the file. Two processes that compile it for different types would take the same name, and whoever
    reads the index later may find the code of other types: wrong numbers, or reads of other memory.
    """
    IndexDataCacheFile.save = _save_alone


def _save_alone(self: Any, key: Any, data: Any) -> None:
    with Path(self._cache_path, "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        _save(self, key, data)
