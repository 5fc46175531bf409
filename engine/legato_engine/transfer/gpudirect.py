"""What RDMA straight from and to a GPU's memory needs of CUDA: memory of a plain allocation, and a flush of what peers
have written where the GPU may not see it by itself. The only module that calls libcuda; no torch.

See NVIDIA's "Developing a Linux Kernel Module using GPUDirect RDMA", and the driver's API.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from legato_engine.transfer.link import LinkError

_SUPPORTED, _FLUSH_OPTIONS, _WRITES_ORDERING = 116, 117, 118  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_…
_BY_HOST = 1 << 0  # of the options: the flush can be called
_TO_OWNER = 100  # the least ordering by which the GPU itself sees writes in time; also the scope of a flush
_OF_CURRENT_CONTEXT = 0  # what is flushed


def flush_of(device: int, libcuda: Any = None) -> Callable[[], None]:
    """What has to be called between a peer's word that it has written and the work of this GPU that reads it.

    `libcuda` is loaded unless given. Raises LinkError where the GPU does not offer what is needed.
    """
    return WriteFlush(libcuda or _libcuda(), device)


class WriteFlush:
    """Blocks for some microseconds at most; does nothing on GPUs that see writes in order."""

    def __init__(self, libcuda: Any, device: int) -> None:
        self._libcuda = libcuda
        self._call("cuInit", 0)
        handle = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(handle), device)
        if not self._attribute(_SUPPORTED, handle):
            raise LinkError(f"GPU {device} does not support GPUDirect RDMA")
        self.needed = self._attribute(_WRITES_ORDERING, handle) < _TO_OWNER
        if self.needed and not self._attribute(_FLUSH_OPTIONS, handle) & _BY_HOST:
            raise LinkError(f"GPU {device} neither sees what RDMA devices write in order nor lets the host flush it")
        self._context = ctypes.c_void_p()  # torch's: there is one primary context
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)

    def __call__(self) -> None:
        """In any thread. Raises LinkError if the driver refuses: what was written must not be used then."""
        if self.needed:
            self._call("cuCtxSetCurrent", self._context)
            self._call("cuFlushGPUDirectRDMAWrites", _OF_CURRENT_CONTEXT, _TO_OWNER)

    def _attribute(self, number: int, device: ctypes.c_int) -> int:
        found = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), number, device)
        return found.value

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._libcuda, name)(*arguments):
            raise LinkError(f"{name} of the GPU's driver failed with {status}")


def check_plain(address: int, segments: Iterable[Mapping[str, Any]], allocator: str) -> None:
    """Whether the memory at `address` is of one `cudaMalloc`, by torch's `segments`: what it maps piece by piece, or
    has from CUDA's pools, cannot be registered for RDMA as a whole. Raises LinkError."""
    if allocator != "native":
        raise LinkError(f"torch's allocator is {allocator}: GPUDirect needs the native one (PYTORCH_CUDA_ALLOC_CONF)")
    found = [each for each in segments if each["address"] <= address < each["address"] + each["total_size"]]
    if not found:
        raise LinkError("torch does not know the memory of the KV cache as an allocation of its own")
    if any(each.get("is_expandable") for each in found):
        raise LinkError("memory of expandable_segments: GPUDirect needs plain ones (PYTORCH_CUDA_ALLOC_CONF)")


def _libcuda() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LinkError(f"no driver of a GPU: {error}") from None
