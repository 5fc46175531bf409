"""libcuda, as far as hand-offs within a node call it, over files: several processes can open the same "GPU memory"."""

import ctypes
import mmap
from pathlib import Path

import torch

FAILED = 201


class HostCuda:
    """Memory of the GPUs is in the files of `folder`. Calls in `failing` fail."""

    def __init__(self, folder, failing=()):
        self._folder = Path(folder)
        self._ranges = {}  # base: (length, name, mapping)
        self.closed = []
        self.failing = failing

    def __getattribute__(self, name):
        if name.startswith("cu") and name in object.__getattribute__(self, "failing"):
            return lambda *arguments: FAILED
        return object.__getattribute__(self, name)

    def allocate(self, nbytes):
        """A tensor of bytes in a new allocation."""
        name = f"memory-{len(self._ranges)}-{id(self)}"
        (self._folder / name).write_bytes(bytes(nbytes))
        return self._map(name)[1]

    def adopt(self, tensor):
        """Takes a tensor for an allocation of this process, which no other can open."""
        self._ranges[tensor.data_ptr()] = tensor.nbytes, "adopted", tensor

    def _map(self, name):
        with (self._folder / name).open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        tensor = torch.frombuffer(mapped, dtype=torch.uint8)
        self._ranges[tensor.data_ptr()] = len(mapped), name, tensor
        return tensor.data_ptr(), tensor

    def cuInit(self, flags):
        return 0

    cuDeviceGet = cuDevicePrimaryCtxRetain = lambda self, result, number: 0

    def cuCtxSetCurrent(self, context):
        return 0

    def cuMemGetAddressRange_v2(self, base, length, address):
        for start, (size, *_) in self._ranges.items():
            if start <= address.value < start + size:
                base._obj.value, length._obj.value = start, size
                return 0
        return FAILED

    def cuIpcGetMemHandle(self, handle, base):
        name = self._ranges[base.value][1].encode()
        ctypes.memmove(handle, name.ljust(64, b"\0"), 64)
        return 0

    def cuIpcOpenMemHandle_v2(self, base, handle, flags):
        base._obj.value = self._map(bytes(handle.reserved).rstrip(b"\0").decode())[0]
        return 0

    def cuIpcCloseMemHandle(self, base):
        self.closed.append(base.value)
        return 0

    def cuMemcpyDtoDAsync_v2(self, target, source, length, stream):
        ctypes.memmove(target.value, source.value, length.value)
        return 0

    def cuMemcpyDtoH_v2(self, target, source, length):
        ctypes.memmove(target, source.value, length.value)
        return 0
