"""Clocks of work on a device: its own events, or the processor's clock if there is no device."""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Protocol

import torch

Work = Callable[[], object]
_MOST_CYCLES = 1 << 32  # about 2 s


class DeviceClock(Protocol):
    """A clock; results show its `name`."""

    name: str

    def wait(self) -> None:
        """Until the device has nothing more to do."""

    def seconds(self, work: Work, times: int) -> float:
        """Returns the mean seconds of `runs` consecutive runs, until the last has ended."""

    def queued(self, work: Work) -> float:
        """Seconds that the device is at what `work` starts, when all of that was started before it began: no time is
        counted in which it waits for the processor. The median of some tries; `work` was done before."""


class CudaClock:
    """Implements `DeviceClock` by CUDA's events."""

    name = "CUDA events"

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._cycles = 1 << 24  # about 10 ms

    def wait(self) -> None:
        torch.cuda.synchronize(self._place)

    def seconds(self, work: Work, times: int) -> float:
        """The median of three tries, after one that is not counted: kernels are compiled in it, graphs captured."""
        _once(self, work, times)
        return median(_once(self, work, times) for _ in range(3))

    def queued(self, work: Work) -> float:
        return median(self._queued(work) for _ in range(7))

    def _queued(self, work: Work) -> float:
        """The device sleeps until all is started; longer, if that turns out to be too short."""
        while self._cycles <= _MOST_CYCLES:
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.wait()
            torch.cuda._sleep(self._cycles)
            began.record()
            work()
            ended.record()
            late = began.query()
            self.wait()
            if not late:
                return float(began.elapsed_time(ended)) / 1e3
            self._cycles *= 2
        raise RuntimeError("the work waits for the device: it cannot be started while that sleeps")


class HostClock:
    """Implements `DeviceClock` where the processor itself computes: nothing is ever queued."""

    name = "the processor's clock: no figure of a GPU"

    def wait(self) -> None:
        """All is done when a function returns."""

    def seconds(self, work: Work, times: int) -> float:
        return _once(self, work, 1)

    def queued(self, work: Work) -> float:
        return _once(self, work, 1)


def _once(clock: DeviceClock, work: Work, times: int) -> float:
    clock.wait()
    began = perf_counter()
    for _ in range(times):
        work()
    clock.wait()
    return (perf_counter() - began) / times
