"""Compiled code in numba's cache, where two processes save at once."""

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from numba.core.caching import IndexDataCacheFile

import legato_engine.kernels  # noqa: F401 - which has numba save one at a time

STAMP = (0.0, 0)  # of the file that defines the function


def test_code_of_two_kinds_saved_at_once_is_found_by_its_own_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process stands between reading the index and writing it, as another begins to save."""
    read_index = IndexDataCacheFile._load_index
    first_has_read, other_is_done = Event(), Event()

    def read(self: Any) -> Any:
        found = read_index(self)
        if not first_has_read.is_set():
            first_has_read.set()
            other_is_done.wait(0.5)  # all of it only where the other has to wait
        return found

    def save_other() -> None:
        first_has_read.wait()
        cache().save("float32", "code of float32")
        other_is_done.set()

    def cache() -> Any:
        return IndexDataCacheFile(str(tmp_path), "kernel", STAMP)

    monkeypatch.setattr(IndexDataCacheFile, "_load_index", read)
    other = Thread(target=save_other)
    other.start()
    cache().save("uint16", "code of uint16")
    other.join()
    assert cache().load("uint16") == "code of uint16"
    assert cache().load("float32") == "code of float32"
