"""Reads the GPUs of the serving core every few seconds, in a thread: the driver of a faulty GPU may block."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from legato_engine.gpus.interface import GpuMonitor, GpuReading, GpuUnreadable

INTERVAL = 5.0  # seconds between readings
STALE = 30.0  # seconds after which readings no longer count: the driver blocks

Open = Callable[[Sequence[str]], GpuMonitor]  # raises GpuUnreadable


class GpuSource(Protocol):
    """The source of a worker's readings."""

    def follow(self, gpus: tuple[str, ...]) -> None:
        """Reads these GPUs from now on."""
        ...

    @property
    def readings(self) -> tuple[GpuReading, ...]: ...


class NoGpus:
    """Implements `GpuSource` without GPUs."""

    readings: tuple[GpuReading, ...] = ()

    def follow(self, gpus: tuple[str, ...]) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Latest:
    at: float
    readings: tuple[GpuReading, ...]


class GpuWatch:
    """Implements `GpuSource`. A problem is logged once."""

    def __init__(
        self,
        open_monitor: Open,
        log: Callable[[str], None],
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open = open_monitor
        self._log = log
        self._interval = interval
        self._clock = clock
        self._following: tuple[str, ...] = ()
        self._latest = _Latest(float("-inf"), ())
        self._stopping = threading.Event()

    def follow(self, gpus: tuple[str, ...]) -> None:
        """Starts the thread. A core that is started again has the same GPUs, whose counts go on."""
        if gpus and not self._following:
            self._following = gpus
            threading.Thread(target=self._run, name="gpus", daemon=True).start()

    @property
    def readings(self) -> tuple[GpuReading, ...]:
        """The last readings; none if they are stale."""
        latest = self._latest
        return latest.readings if self._clock() - latest.at <= STALE else ()

    def close(self) -> None:
        """Ends the thread after its current reading, without waiting for it."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            monitor = self._open(self._following)
        except GpuUnreadable as error:
            self._log(f"no metrics of GPUs: {error}")
            return
        while not self._stopping.is_set():
            self._latest = _Latest(self._clock(), monitor.read())
            self._stopping.wait(self._interval)
        monitor.close()
