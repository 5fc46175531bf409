"""The memory of all KV blocks: one page-aligned allocation."""

import ctypes
from collections.abc import Sequence
from contextlib import suppress

import torch

from legato_engine.errors import StartFailed, TooLittleMemory
from legato_engine.kvcache.layout import KVLayout
from legato_engine.kvcache.moves import Move
from legato_engine.runner.host_slots import HostSlots
from legato_engine.transfer.node import memory_file
from legato_engine.transfer.node.memory_file import MemoryFile


class Arena:
    """Zeroed blocks of `layout`; block i begins at `address + i * layout.block_bytes`. `host` has evicted ones.

    With `shared`, other processes may read blocks in host memory; `file` is then what they map. With `for_ranks`, they
    may also write to it until `seal`.
    """

    parts: Sequence[Sequence[torch.Tensor]] = ()

    def __init__(
        self, layout: KVLayout, num_blocks: int, device: torch.device, host_slots: int = 0, *,
        shared: bool = False, for_ranks: bool = False,
    ) -> None:  # fmt: skip
        """Raises TooLittleMemory if the host's slots cannot be pinned, StartFailed if ranks cannot share memory."""
        self.layout = layout
        self.num_blocks = num_blocks
        nbytes = num_blocks * layout.block_bytes
        self.file: MemoryFile | None = None
        if device.type == "cpu":
            memory, self.file = memory_file.allocate(nbytes, shared=shared or for_ranks, sealed=not for_ranks)
            if for_ranks and self.file is None:
                raise StartFailed("ranks share memory, which this kernel does not support (memfd_create)")
            self._memory = torch.frombuffer(memory, dtype=torch.uint8)
        else:
            self._memory = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        dtype: torch.dtype = getattr(torch, layout.dtype)
        self.blocks = self._memory.view(dtype).view(num_blocks, *layout.block_shape)
        self.host = HostSlots(self.blocks, host_slots)

    def seal(self, *, shared: bool) -> None:
        """Ends the time in which other processes may map the memory for writing; without `shared`, none may map it any
        more."""
        file, self.file = self.file, None
        if file is not None and shared:
            with suppress(OSError):  # then no other worker reads it
                file.seal()
                self.file = file

    @property
    def on_host(self) -> bool:
        return self._memory.device.type == "cpu"

    @property
    def address(self) -> int:
        return self._memory.data_ptr()

    @property
    def nbytes(self) -> int:
        return self._memory.numel()

    def block(self, index: int) -> memoryview:
        """The bytes of one block, writable. Only for an arena on the host."""
        if not 0 <= index < self.num_blocks:
            raise IndexError(f"block {index} of an arena of {self.num_blocks}")
        size = self.layout.block_bytes
        return memoryview((ctypes.c_ubyte * size).from_address(self.address + index * size)).cast("B")

    def move(self, moves: Sequence[Move]) -> None:
        """Moves blocks between the arena and the host's slots, in order."""
        self.host.move(moves)

    def copy(self, source: int, target: int) -> None:
        """Makes block `target` equal to block `source`."""
        self.blocks[target] = self.blocks[source]


def count_blocks(layout: KVLayout, kv_cache_bytes: int, max_length: int, chunk_tokens: int = 0) -> int:
    """The number of blocks that fit. Raises TooLittleMemory if a sequence of `max_length` tokens does not."""
    count = kv_cache_bytes // layout.whole_bytes
    sizes = layout.sizes(chunk_tokens)
    needed = sizes.most(max_length)
    if count < needed:
        raise TooLittleMemory(
            f"kvCacheMemory of {kv_cache_bytes:,} bytes holds {count} blocks of {layout.whole_bytes:,} bytes; one "
            f"sequence of {max_length} tokens needs {needed}: give at least {needed * layout.whole_bytes:,} bytes, "
            f"or a maxLength of at most {sizes.largest(count)}"
        )
    return count
