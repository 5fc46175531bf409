"""CUDA's part of RDMA from and to GPU memory: memory of a plain allocation, and a flush of peers' writes if needed.

No torch. See NVIDIA's "Developing a Linux Kernel Module using GPUDirect RDMA", and the driver API.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from legato_engine.transfer.device.driver import Driver, load
from legato_engine.transfer.link import LinkError

_SUPPORTED, _FLUSH_OPTIONS, _WRITES_ORDERING = 116, 117, 118  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_…
_BY_HOST = 1 << 0  # option: the host can flush
_TO_OWNER = 100  # weakest ordering with which the GPU itself sees writes in time; also the scope of a flush
_OF_CURRENT_CONTEXT = 0  # target of a flush


def open_flush(device: int, libcuda: Any = None) -> Callable[[], None]:
    """Returns the function to call between a peer's message that it has written and the GPU's reads.

    `libcuda` is loaded unless given. Raises LinkError if the GPU does not support it.
    """
    return WriteFlush(libcuda or load(), device)


class WriteFlush:
    """Flushes peers' writes; takes microseconds, and nothing on GPUs that see writes in order."""

    def __init__(self, libcuda: Any, device: int) -> None:
        self._driver = driver = Driver(libcuda, device)
        if not driver.attribute(_SUPPORTED):
            raise LinkError(f"GPU {device} does not support GPUDirect RDMA")
        self.needed = driver.attribute(_WRITES_ORDERING) < _TO_OWNER
        if self.needed and not driver.attribute(_FLUSH_OPTIONS) & _BY_HOST:
            raise LinkError(f"GPU {device} neither orders the writes of RDMA devices nor lets the host flush them")

    def __call__(self) -> None:
        """Callable in any thread. Raises LinkError if the driver refuses: then the writes must not be used."""
        if self.needed:
            self._driver.enter()
            self._driver.call("cuFlushGPUDirectRDMAWrites", _OF_CURRENT_CONTEXT, _TO_OWNER)


def check_plain(address: int, segments: Iterable[Mapping[str, Any]], allocator: str) -> None:
    """Checks by torch's `segments` that the memory at `address` is from a single `cudaMalloc`.

    Expandable segments and memory of CUDA's pools cannot be registered for RDMA or opened by other processes as a
    whole. Raises LinkError.
    """
    if allocator != "native":
        raise LinkError(f"torch's allocator is {allocator}: others need the native one (PYTORCH_CUDA_ALLOC_CONF)")
    matches = [each for each in segments if each["address"] <= address < each["address"] + each["total_size"]]
    if not matches:
        raise LinkError("torch does not know the memory of the KV cache as an allocation of its own")
    if any(each.get("is_expandable") for each in matches):
        raise LinkError("memory of expandable_segments: others need plain ones (PYTORCH_CUDA_ALLOC_CONF)")
