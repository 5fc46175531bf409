"""Puts on their way to the link: each begins once the device has written its blocks, in the order of the pushes.

Steps end in the order in which they were launched, so nobody waits here for an event that comes after the own one.
"""

from collections import deque
from collections.abc import Callable

from legato_engine.transfer.checksum import ArenaMemory
from legato_engine.transfer.link import Link
from legato_engine.transfer.puts import BlockPut, spans


class PutQueue:
    """Of all hand-offs that a worker sends. Not a byte of a put is read here before its event is done."""

    def __init__(
        self,
        link: Link,
        memory: ArenaMemory,
        checksum: bool,
        wanted: Callable[[BlockPut], bool],
        dropped: Callable[[BlockPut], None],
    ) -> None:
        """A put that is not `wanted` any more before it began is `dropped`; the link tells the end of all others."""
        self._link = link
        self._memory = memory
        self._checksum = checksum
        self._wanted = wanted
        self._dropped = dropped
        self._waiting: deque[BlockPut] = deque()

    @property
    def waiting(self) -> bool:
        """Whether `advance` has something to look after."""
        return bool(self._waiting)

    def add(self, put: BlockPut) -> None:
        self._waiting.append(put)
        self.advance()

    def advance(self) -> None:
        """Begins what can begin."""
        for put in [put for put in self._waiting if not self._wanted(put)]:
            self._waiting.remove(put)
            self._dropped(put)
        while self._waiting and _written(self._waiting[0]):
            self._begin(self._waiting.popleft())

    def _begin(self, put: BlockPut) -> None:
        memory = self._memory
        put.sums = memory.sums(put.blocks) if self._checksum else [0] * len(put.blocks)
        where = spans(put.blocks, memory.address, put.targets, put.arena, memory.block_bytes)
        self._link.put(put.connection, where, put.tag)


def _written(put: BlockPut) -> bool:
    return put.after is None or put.after.done()
