"""Processes that compile a worker's kernels concurrently, into the caches on disk of Triton and numba.

Each process takes a kernel that no other one has taken, prints its name, and compiles it. The worker itself
compiles the kernels that a failed process leaves.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Self

from legato_protocol.process.parent import die_with_parent

_log = logging.getLogger(__name__)

MOST = 4  # processes; more would wait for the slowest kernel, which takes half of the total time
LIMIT = 600.0  # seconds until the processes are killed
_POLL = 0.1  # seconds between polls of the processes


class Claims:
    """A folder with a file for each kernel that a process has taken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, kernel: str, name: str) -> bool:
        """Takes the kernel with this key and prints its `name`; False if a process has taken it."""
        try:
            os.close(os.open(self._folder / sha256(kernel.encode()).hexdigest(), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        print(name, flush=True)
        return True


class CompileProcesses:
    """Runs `python -m MODULE ARGUMENTS… FOLDER PARENT` several times, where FOLDER is for `Claims`. As a context
    manager, it kills those that still run."""

    def __init__(
        self, module: str, arguments: Sequence[str], count: int, variables: dict[str, str] | None = None
    ) -> None:
        self._folder = TemporaryDirectory(prefix="legato-compile-")
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._count, self._waited = count, 0.0
        command = [sys.executable, "-m", module, *arguments, self._folder.name, str(os.getpid())]
        for number in range(1, count + 1):
            with self._file(number, "out").open("wb") as out, self._file(number, "err").open("wb") as err:
                self._running[number] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, **(variables or {})}
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()
        self._folder.cleanup()

    def finish(self, beat: Callable[[], None]) -> None:
        """Waits until all processes have ended, and logs the failed ones. Calls `beat` meanwhile."""
        while self._running:
            for number, process in [*self._running.items()]:
                if (code := process.poll()) is not None:
                    del self._running[number]
                    self._report(number, code)
            if self._running:
                beat()
                sleep(_POLL)
                self._waited += _POLL
            if self._waited > LIMIT:
                _log.warning("kernels are not compiled after %g s: the worker compiles the missing ones", LIMIT)
                return

    def _report(self, number: int, code: int) -> None:
        if not code:
            return
        kernels = self._file(number, "out").read_text(errors="replace").splitlines() or ["its first kernel"]
        reason = self._file(number, "err").read_text(errors="replace").strip().splitlines() or ["no message"]
        _log.warning(
            "process %d of %d that compile kernels ended with code %d at %s (%s): the worker compiles the rest",
            number, self._count, code, kernels[-1], reason[-1],
        )  # fmt: skip

    def _file(self, number: int, suffix: str) -> Path:
        return Path(self._folder.name, f"{number}.{suffix}")


def processes(kernels: int) -> int:
    """The number of processes for this many kernels; 0 if the worker itself compiles as fast."""
    count = min(MOST, kernels, len(os.sched_getaffinity(0)))
    return count if count > 1 else 0


def claims(folder: str, parent: str) -> Claims:
    """Returns the claims of this process, which ends with its parent. Raises SystemExit if the parent has ended."""
    if not die_with_parent(int(parent)):
        raise SystemExit(1)
    return Claims(Path(folder))
