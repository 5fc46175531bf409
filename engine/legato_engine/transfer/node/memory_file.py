"""Memory of an arena as a file without a name, which other processes can map only for reading.

The file is sealed: its size never changes, so a reader that has mapped it never gets a SIGBUS, and no other process can
write to it. The kernel frees the memory once the owner and all readers have ended.
"""

import fcntl
import mmap
import os
import weakref
from contextlib import suppress

import numpy as np

_SEAL_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE of Linux 5.1; Python 3.11 has no name for it
_FIXED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEALS = _FIXED | _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class MemoryFile:
    """`memory` is `nbytes` of zeros; once sealed, it is writable only for this process and those that have mapped it,
    and `fd` can be passed to readers."""

    def __init__(self, nbytes: int, *, sealed: bool = True) -> None:
        """Raises OSError if the kernel does not support it."""
        self.fd = os.memfd_create("legato-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd).atexit = False
        os.ftruncate(self.fd, nbytes)
        self.memory = mmap.mmap(self.fd, nbytes)
        if sealed:
            self.seal()

    def seal(self) -> None:
        """Raises OSError if the kernel does not support it."""
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)


class MappedFile:
    """Implements `PeerArena`: another worker's memory file, mapped for reading."""

    def __init__(self, fd: int, num_blocks: int, block_bytes: int) -> None:
        """`fd` may be closed afterwards. Raises OSError, and ValueError for a file that is not such an arena."""
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _FIXED != _FIXED:
            raise ValueError("its memory can change its size")
        size = os.fstat(fd).st_size
        if not 0 < num_blocks * block_bytes <= size:
            raise ValueError(f"its memory of {size} bytes does not hold {num_blocks} blocks of {block_bytes}")
        mapped = mmap.mmap(fd, num_blocks * block_bytes, prot=mmap.PROT_READ)
        with suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
        self.num_blocks = num_blocks
        self._bytes = np.frombuffer(mapped, np.uint8)  # keeps the mapping

    @property
    def address(self) -> int:
        return int(self._bytes.ctypes.data)

    def read(self, start: int, count: int) -> bytes:
        return self._bytes[start : start + count].tobytes()


def allocate(nbytes: int, *, shared: bool, sealed: bool = True) -> tuple[mmap.mmap, MemoryFile | None]:
    """Allocates zeroed memory, in huge pages if the kernel has them: with `shared`, as a file if it supports that.

    Attention reads a few KiB of many pages, and waits for the translation of each page's address.
    """
    file = None
    if shared:
        with suppress(OSError):  # then it is private
            file = MemoryFile(nbytes, sealed=sealed)
    memory = file.memory if file else mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, file
