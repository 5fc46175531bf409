"""GPUs without a driver, in memory: tests and demonstrations set their values."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from legato_engine.gpus.interface import GpuReading, GpuUnreadable


class FakeDriver:
    """Implements the opening of monitors. `gpus` are values by UUID; one that is `lost` reports nothing new."""

    def __init__(self, gpus: Sequence[GpuReading] = (), missing: str = "") -> None:
        self.gpus = {reading.gpu: reading for reading in gpus}
        self.lost: set[str] = set()
        self.missing = missing  # the reason why no GPU can be read
        self.monitors: list[FakeGpuMonitor] = []

    def open_monitor(self, uuids: Sequence[str]) -> "FakeGpuMonitor":
        """Raises GpuUnreadable."""
        named = [next((gpu for gpu in self.gpus if gpu.endswith(uuid)), "") for uuid in uuids]
        if self.missing or "" in named:
            raise GpuUnreadable(self.missing or f"no GPU {uuids[named.index('')]}")
        monitor = FakeGpuMonitor(self, named)
        self.monitors.append(monitor)
        return monitor

    def fail(self, gpu: str, xid: int) -> None:
        """Reports an error of a GPU to all monitors."""
        for monitor in self.monitors:
            monitor.xids[gpu][xid] += 1


class FakeGpuMonitor:
    """Implements `GpuMonitor`."""

    def __init__(self, driver: FakeDriver, gpus: Sequence[str]) -> None:
        self.xids: dict[str, Counter[int]] = {gpu: Counter() for gpu in gpus}
        self.closed = False
        self._driver = driver

    def read(self) -> tuple[GpuReading, ...]:
        return tuple(self._read(gpu) for gpu in self.xids)

    def close(self) -> None:
        self.closed = True

    def _read(self, gpu: str) -> GpuReading:
        reading = replace(self._driver.gpus[gpu], xid_errors=dict(self.xids[gpu]))
        if gpu not in self._driver.lost:
            return reading
        return GpuReading(gpu, ecc_errors=reading.ecc_errors, xid_errors=reading.xid_errors)
