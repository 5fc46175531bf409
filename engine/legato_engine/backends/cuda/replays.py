"""Captured steps by size. At most MOST of them are kept, of which the least recently used one makes room for another.

A step whose size is not captured yet is padded to a near one that is, so that it does not wait for the capture, which
takes the host as long as launching each kernel.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.sizes import near
from legato_engine.backends.cuda.step import CudaStep
from legato_engine.backends.cuda.workspace import Size

MOST = 128


class CapturedStep(NamedTuple):
    """`again` computes the step from the inputs of the last `fill`, and its logits."""

    step: CudaStep
    again: Callable[[], None]


class CapturedSteps:
    """The captured steps of a worker."""

    def __init__(self, device: Device, most: int = MOST) -> None:
        self._device = device
        self._most = most
        self._by_size: OrderedDict[Size, CapturedStep] = OrderedDict()
        self._missing: Size | None = None

    def __len__(self) -> int:
        return len(self._by_size)

    def find(self, size: Size) -> CapturedStep | None:
        """The step of this size or, until it is captured, the smallest near one, or None."""
        if size in self._by_size:
            self._by_size.move_to_end(size)
            return self._by_size[size]
        self._missing = size
        fitting = [each for each in self._by_size if near(each, size)]
        if not fitting:
            return None
        return self._by_size[min(fitting, key=lambda each: (each.tokens, each.samples, each.rows, each.prompts))]

    def add(self, captured: CapturedStep) -> None:
        if len(self._by_size) >= self._most:
            self._device.mark()()  # the device may be computing the step that is dropped
            self._by_size.popitem(last=False)
        self._by_size[captured.step.size] = captured

    def take_missing(self) -> Size | None:
        """The size of the last step that was padded to another one, once."""
        size, self._missing = self._missing, None
        return None if size in self._by_size else size

    def clear(self) -> None:
        self._by_size.clear()
        self._missing = None
