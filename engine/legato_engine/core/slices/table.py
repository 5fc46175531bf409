"""The table that workers of one machine share: a mapped file with an entry for each, and a FIFO to wake each.

A worker writes to others' entries only under the lock, which the kernel releases when its holder dies. A worker keeps
its FIFO open for reading until it ends, however it ends: so others notice its end.
"""

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Final

import numpy as np

from legato_engine.core.slices.policy import SliceClaim, SliceEntry, SliceState

MOST: Final = 64  # workers
_RETRY: Final = 0.0005  # seconds until the lock is tried again, which others hold for less
_ENTRY = np.dtype(
    [
        ("state", np.int64),
        ("threads", np.int64),
        ("since", np.float64),
        ("due", np.float64),
        ("end", np.float64),
        ("preempts", np.float64),
        ("prompts", np.int64),
        ("rest", np.float64),
        ("overdue", np.float64),  # time until which others wait for the end of its slice
    ]
)


class TableFull(Exception):
    """MOST workers have an entry already."""


class SliceTable:
    """One worker's view of the table in `folder`, which the first worker creates. Raises OSError, TableFull."""

    def __init__(self, folder: Path, threads: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = os.open(folder / "table", os.O_RDWR | os.O_CREAT, 0o600)
        size = MOST * _ENTRY.itemsize
        with self.locked():
            if os.fstat(self._file).st_size < size:
                os.ftruncate(self._file, size)
            self._entries = np.frombuffer(mmap.mmap(self._file, size), _ENTRY)
            self.number = self._take(threads)
        self._own = self._entries[self.number]
        self._others: dict[int, int] = {}  # others' FIFOs by number

    @property
    def state(self) -> SliceState:
        return SliceState(int(self._own["state"]))

    @state.setter
    def state(self, state: SliceState) -> None:
        self._own["state"] = state

    @property
    def since(self) -> float:
        return float(self._own["since"])

    @since.setter
    def since(self, since: float) -> None:
        self._own["since"] = since

    def write(self, claim: SliceClaim) -> None:
        """Writes this worker's claim."""
        own = self._own
        own["due"], own["end"], own["preempts"], own["prompts"] = claim.due, claim.end, claim.preempts, claim.prompts

    def postpone(self, due: float) -> None:
        """Writes the time at which this worker's next step is due."""
        self._own["due"] = due

    def rest_until(self, rest: float) -> None:
        """Writes the time until which prompts go on after this worker's step with tokens."""
        self._own["rest"] = rest

    def rest(self) -> float:
        """Time until which prompts go on after all steps with tokens."""
        return float(self._entries["rest"].max())

    def wait_until(self, overdue: float) -> None:
        """Writes the time until which others wait for the end of this worker's slice."""
        self._own["overdue"] = overdue

    def threads(self) -> int:
        """Threads of all workers."""
        return int(self._entries["threads"][self._entries["state"] != SliceState.FREE].sum())

    def running(self) -> int:
        """Threads of all slices that have not ended."""
        return int(self._entries["threads"][self._entries["state"] == SliceState.HOLDING].sum())

    def waiting(self) -> bool:
        """True if a worker waits."""
        return bool((self._entries["state"] == SliceState.WAITING).any())

    def fileno(self) -> int:
        """A descriptor that is readable after another worker granted a slice to this one."""
        return self._fifo

    def clear_wakeup(self) -> None:
        """Makes the descriptor unreadable."""
        with suppress(BlockingIOError):
            os.read(self._fifo, 4096)

    def grant(self, number: int, overdue: float) -> None:
        """Begins a worker's slice and wakes it; frees the entry of one that has ended. Only under the lock."""
        entry = self._entries[number]
        entry["overdue"], entry["state"] = overdue, SliceState.HOLDING
        if number != self.number and not self._wake(number):
            entry["state"] = SliceState.FREE

    def pass_over_late(self, now: float) -> None:
        """Ends slices that are overdue; only under the lock."""
        late = (self._entries["state"] == SliceState.HOLDING) & (self._entries["overdue"] < now)
        self._entries["state"][late] = SliceState.IDLE

    def _wake(self, number: int) -> bool:
        """Wakes a worker; False if it has ended."""
        try:
            if number not in self._others:
                self._others[number] = os.open(self._path(number), os.O_WRONLY | os.O_NONBLOCK)
            os.write(self._others[number], b"\0")
        except BlockingIOError:
            return True  # it has many unread wake-ups
        except OSError:
            return False
        return True

    def free_ended(self) -> None:
        """Frees the entries of workers that have ended; only under the lock."""
        for number in np.flatnonzero(self._entries["state"] != SliceState.FREE).tolist():
            if number != self.number and not self._lives(number):
                self._entries[number]["state"] = SliceState.FREE

    def read(self) -> Iterator[SliceEntry]:
        """Yields the entries in use."""
        for number in np.flatnonzero(self._entries["state"] != SliceState.FREE).tolist():
            state, threads, since, *claim, rest, _ = self._entries[number].item()
            yield SliceEntry(number, SliceState(state), threads, since, SliceClaim(*claim), rest)

    @contextmanager
    def locked(self, patience: float = inf) -> Iterator[bool]:
        """Holds the lock; False without it, if another process has kept it for `patience` seconds."""
        locked = self._lock(patience)
        try:
            yield locked
        finally:
            if locked:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Frees the entry."""
        self._own["state"] = SliceState.FREE
        for descriptor in (self._fifo, self._file, *self._others.values()):
            os.close(descriptor)

    def _lock(self, patience: float) -> bool:
        give_up = time.monotonic() + patience
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if time.monotonic() >= give_up:
                return False
            time.sleep(_RETRY)

    def _take(self, threads: int) -> int:
        for number in range(MOST):
            if self._entries[number]["state"] != SliceState.FREE and self._lives(number):
                continue
            with suppress(FileExistsError):
                os.mkfifo(self._path(number), 0o600)
            self._fifo = os.open(self._path(number), os.O_RDWR | os.O_NONBLOCK)
            self.clear_wakeup()
            self._entries[number] = (SliceState.IDLE, threads, 0.0, np.inf, np.inf, np.inf, 0, 0.0, 0.0)
            return number
        raise TableFull(f"{self._folder}: {MOST} workers take time slices here already")

    def _lives(self, number: int) -> bool:
        try:
            os.close(os.open(self._path(number), os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            return error.errno not in (errno.ENXIO, errno.ENOENT)
        return True

    def _path(self, number: int) -> Path:
        return self._folder / f"fifo-{number}"
