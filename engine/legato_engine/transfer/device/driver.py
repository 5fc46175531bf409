"""The driver of NVIDIA's GPUs, by ctypes: the only module that loads libcuda. No torch."""

import ctypes
from typing import Any

from legato_engine.transfer.link import LinkError


class Driver:
    """Calls for one GPU, in its primary context, which torch uses, too. Callable in any thread."""

    def __init__(self, libcuda: Any, device: int) -> None:
        """Raises LinkError."""
        self._libcuda = libcuda
        self._context: ctypes.c_void_p | None = None
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), device)

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def enter(self) -> None:
        """Makes the primary context the current one of this thread."""
        if self._context is None:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
            self._context = context
        self.call("cuCtxSetCurrent", self._context)

    def call(self, name: str, *arguments: Any) -> None:
        """Raises LinkError if the driver refuses."""
        if status := getattr(self._libcuda, name)(*arguments):
            raise LinkError(f"{name} of the GPU driver failed with {status}")


def load() -> Any:
    """Loads libcuda. Raises LinkError."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LinkError(f"the GPU driver cannot be loaded: {error}") from None
