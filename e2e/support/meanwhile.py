"""Threads that do something while a test does something else."""

import threading
from typing import Self

import kube


class Meanwhile:
    """Runs `_run` in `threads` threads from entering to leaving, which sets `_stop`."""

    def __init__(self, threads: int = 1) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(kube.PATIENCE)

    @property
    def _running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        raise NotImplementedError
