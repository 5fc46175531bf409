"""GPU memory of other processes on this node, by CUDA's IPC handles. No torch.

The handle is for a whole allocation of `cudaMalloc`. A process cannot open its own handle.
"""

import ctypes
import struct
import weakref
from collections.abc import Sequence

from legato_engine.transfer.device.driver import Driver
from legato_engine.transfer.link import LinkError
from legato_engine.transfer.node.handshake import ArenaOffer

_HANDLE_BYTES = 64
_OFFSET = struct.Struct("<Q")  # of the arena in its allocation
_LAZY_PEER_ACCESS = 1  # a flag: memory of another GPU is reached by NVLink or PCIe where the driver can


class _Handle(ctypes.Structure):
    """`CUipcMemHandle`, which the driver takes by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * _HANDLE_BYTES),)


class OpenedAllocation:
    """An allocation of another process, from `base` on, open while this object exists."""

    def __init__(self, driver: Driver, handle: bytes) -> None:
        """Raises LinkError, for example if this container does not see that GPU."""
        driver.enter()
        base = ctypes.c_uint64()
        given = _Handle.from_buffer_copy(handle)
        driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(base), given, _LAZY_PEER_ACCESS)
        self.base = base.value
        weakref.finalize(self, _close, driver, self.base).atexit = False
        self.length = _allocation(driver, self.base)[1]


class DeviceArena:
    """Implements `PeerArena`: another worker's arena in GPU memory."""

    def __init__(self, allocation: OpenedAllocation, offset: int, offer: ArenaOffer) -> None:
        """Raises ValueError if the allocation does not hold the arena."""
        needed = offset + offer.num_blocks * offer.block_bytes
        if not offset < needed <= allocation.length:
            raise ValueError(f"its arena ends at byte {needed} of an allocation of {allocation.length} bytes")
        self.num_blocks = offer.num_blocks
        self.address = allocation.base + offset
        self._allocation = allocation


class DeviceIpc:
    """Exports this worker's arena, and opens and copies from other workers' arenas."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._opened: weakref.WeakValueDictionary[bytes, OpenedAllocation] = weakref.WeakValueDictionary()

    def export(self, address: int) -> bytes:
        """Returns the value of `ArenaOffer.handle` for memory at `address`. Raises LinkError."""
        self._driver.enter()
        base, _ = _allocation(self._driver, address)
        handle = _Handle()
        self._driver.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
        return bytes(handle.reserved) + _OFFSET.pack(address - base)

    def open(self, offer: ArenaOffer, fds: Sequence[int]) -> DeviceArena:
        """Implements `OpenArena`; connections to the same worker share one opened allocation."""
        if fds or len(offer.handle) != _HANDLE_BYTES + _OFFSET.size:
            raise ValueError("its arena is not in GPU memory")
        handle, (offset,) = offer.handle[:_HANDLE_BYTES], _OFFSET.unpack_from(offer.handle, _HANDLE_BYTES)
        try:
            allocation = self._opened.get(handle)
            if allocation is None:
                allocation = self._opened[handle] = OpenedAllocation(self._driver, handle)
        except LinkError as error:
            raise ValueError(str(error)) from None
        return DeviceArena(allocation, offset, offer)

    def copy(self, source: int, target: int, length: int, stream: int) -> None:
        """Starts a copy within or between GPUs on `stream`. Raises LinkError."""
        self._driver.enter()
        arguments = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(length), ctypes.c_void_p(stream)
        self._driver.call("cuMemcpyDtoDAsync_v2", *arguments)

    def read(self, source: int, length: int) -> bytes:
        """Copies GPU memory to the host, and waits for it. Raises LinkError."""
        self._driver.enter()
        buffer = ctypes.create_string_buffer(length)
        self._driver.call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(source), ctypes.c_size_t(length))
        return buffer.raw


def _allocation(driver: Driver, address: int) -> tuple[int, int]:
    """Base and length of the allocation that `address` is in."""
    base, length = ctypes.c_uint64(), ctypes.c_size_t()
    driver.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(length), ctypes.c_uint64(address))
    return base.value, length.value


def _close(driver: Driver, base: int) -> None:
    driver.enter()
    driver.call("cuIpcCloseMemHandle", ctypes.c_uint64(base))
